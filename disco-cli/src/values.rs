//! Parsers of option values. Their errors quote the text that was typed, and `--help` lists the possible values.

use std::ffi::OsStr;
use std::str::FromStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command, Error};
use disco::{DType, DeviceKind, Reduction, SessionKind, backend};

/// Parses one of several names by `parse`, and lists `names` as possible values in `--help`.
#[derive(Clone)]
pub(crate) struct Named<P> {
    names: Vec<&'static str>,
    parse: P,
}

type Parse<T> = fn(&str) -> Result<T, <T as FromStr>::Err>;

/// Kinds of sessions.
pub(crate) fn sessions() -> Named<Parse<SessionKind>> {
    Named { names: SessionKind::ALL.map(SessionKind::name).to_vec(), parse: SessionKind::from_str }
}

/// Element types.
pub(crate) fn dtypes() -> Named<Parse<DType>> {
    Named { names: DType::all().map(DType::name).collect(), parse: DType::from_str }
}

/// Built-in reductions.
pub(crate) fn reductions() -> Named<Parse<Reduction>> {
    Named {
        names: Reduction::ALL.map(Reduction::name).to_vec(),
        parse: |name| match name.parse()? {
            Reduction::Custom(name) => {
                Err(disco::Error::invalid(format!("`{name}` is no built-in reduction, and only these are measured")))
            }
            known => Ok(known),
        },
    }
}

/// Backends of this program. Any name parses: looking up an unknown backend gives an error that lists the known ones.
pub(crate) fn backends() -> Named<Parse<String>> {
    Named { names: backend::all().iter().map(|backend| backend.name()).collect(), parse: String::from_str }
}

impl<T, E, P> TypedValueParser for Named<P>
where
    T: Clone + Send + Sync + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
    P: Fn(&str) -> Result<T, E> + Clone + Send + Sync + 'static,
{
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, Error> {
        TypedValueParser::parse_ref(&self.parse, command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().map(PossibleValue::new)))
    }
}

/// A number of workers.
pub(crate) fn workers(text: &str) -> Result<usize, String> {
    at_least_one(text, "a session has at least 1 worker")
}

/// A number of groups.
pub(crate) fn groups(text: &str) -> Result<usize, String> {
    at_least_one(text, "workers are in at least 1 group")
}

/// A number of nodes.
pub(crate) fn nodes(text: &str) -> Result<usize, String> {
    at_least_one(text, "a session has at least 1 node, which is this machine")
}

fn at_least_one(text: &str, why: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err(why.to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err(format!("`{text}` is not a whole number")),
    }
}

/// A size in bytes such as `8`, `64K`, `16M` or `1G`; units are powers of 1,024.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        unit => return Err(format!("unknown unit `{unit}`; the units are K, M and G")),
    };
    let example = "a size is a whole number of bytes, or of K, M or G (powers of 1,024), such as 64K";
    let number: usize = digits.parse().map_err(|_| format!("`{text}` is not a size: {example}"))?;
    match number.checked_mul(1 << shift) {
        Some(0) => Err("a size is at least 1 byte".to_owned()),
        Some(bytes) => Ok(bytes),
        None => Err(format!("`{text}` is larger than the address space")),
    }
}

/// A command with its options, in words as a shell splits them: quotes and backslashes keep blanks. At least one word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Words(pub(crate) Vec<String>);

impl FromStr for Words {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match shlex::split(text) {
            Some(words) if words.is_empty() => Err("expected a command".to_owned()),
            Some(words) => Ok(Self(words)),
            None => Err("a quote is not closed, or nothing follows the last backslash".to_owned()),
        }
    }
}

/// `HOST:PORT`, or several, separated by commas.
pub(crate) fn addresses(text: &str) -> Result<String, String> {
    text.split(',').try_for_each(address)?;
    Ok(text.to_owned())
}

/// `HOST:PORT`.
pub(crate) fn one_address(text: &str) -> Result<String, String> {
    address(text).map(|()| text.to_owned())
}

fn address(text: &str) -> Result<(), String> {
    let invalid = |why: String| Err(format!("`{text}` is not HOST:PORT: {why}"));
    let Some((host, port)) = text.rsplit_once(':') else {
        return invalid(format!("the port is missing, as in {text}:4567"));
    };
    if host.is_empty() {
        return invalid(format!("the host is missing, as in 127.0.0.1:{port}"));
    }
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        return invalid("an IPv6 address needs brackets, as in [::1]:4567".to_owned());
    }
    match port.parse::<u16>() {
        Ok(_) => Ok(()),
        Err(_) => invalid(format!("`{port}` is not a port number (0 to 65535)")),
    }
}

/// Rejects `--devices` for a backend whose tensors are in host memory.
///
/// # Errors
/// `devices` is not empty, and `backend` uses host memory or is unknown.
pub(crate) fn check_devices(backend: &str, devices: &[i32]) -> anyhow::Result<()> {
    if !devices.is_empty() && backend::find(backend)?.device_kind() == DeviceKind::Cpu {
        anyhow::bail!("--devices has no effect: backend `{backend}` keeps tensors in host memory");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_units_of_1024_and_reject_zero_fractions_and_unknown_units() {
        assert_eq!(size("8"), Ok(8));
        assert_eq!(size("64k"), Ok(64 << 10));
        assert_eq!(size("16MiB"), Ok(16 << 20));
        assert_eq!(size("1G"), Ok(1 << 30));
        for refused in ["M", "12X", "99999999999G", "0", "0K", "1e6", "1.5M", "-1", ""] {
            assert!(size(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn a_command_is_split_as_by_a_shell_and_an_open_quote_is_refused() {
        let words = |text: &str| text.parse().map(|Words(words)| words);
        let command = r#"ssh  -o 'ProxyCommand=nc %h %p' -i "/my \"keys/id" a\ b ''"#;
        assert_eq!(words(command).unwrap(), ["ssh", "-o", "ProxyCommand=nc %h %p", "-i", "/my \"keys/id", "a b", ""]);
        for open in ["ssh 'a", "ssh \"a", "ssh \\"] {
            assert_eq!(words(open), Err("a quote is not closed, or nothing follows the last backslash".to_owned()));
        }
        assert_eq!(words(" "), Err("expected a command".to_owned()));
    }

    #[test]
    fn addresses_without_host_or_port_are_rejected_with_the_reason() {
        for taken in ["a:1", "127.0.0.1:4567", "[::1]:0", "a:1,b:2"] {
            assert_eq!(addresses(taken).as_deref(), Ok(taken));
        }
        for (refused, why) in [
            ("foo", "`foo` is not HOST:PORT: the port is missing, as in foo:4567"),
            (":80", "`:80` is not HOST:PORT: the host is missing, as in 127.0.0.1:80"),
            ("::1:80", "`::1:80` is not HOST:PORT: an IPv6 address needs brackets, as in [::1]:4567"),
            ("a:http", "`a:http` is not HOST:PORT: `http` is not a port number (0 to 65535)"),
            ("a:1,b:70000", "`b:70000` is not HOST:PORT: `70000` is not a port number (0 to 65535)"),
        ] {
            assert_eq!(addresses(refused), Err(why.to_owned()));
        }
    }
}
