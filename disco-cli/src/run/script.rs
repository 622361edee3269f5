//! The scripts that a shell executes on a host. ssh sends them to the standard input of `/bin/sh`, so that neither the
//! arguments of a program nor the session's token are in a command line.

/// Lines on standard output by which a script tells how far it has come.
pub(super) mod mark {
    /// The shell executes the script.
    pub(crate) const SHELL: &str = "@disco shell";
    /// The host needs the program's file.
    pub(crate) const COPY: &str = "@disco copy";
    /// The program starts. The addresses and ports of both ends of the connection of ssh follow: `$SSH_CONNECTION`.
    pub(crate) const PROGRAM: &str = "@disco program";
}

/// Exit statuses of a script before its program starts; the last one is a shell's.
pub(super) mod status {
    /// The file can't be copied.
    pub(crate) const NO_COPY: i32 = 124;
    /// The folder is not there.
    pub(crate) const NO_FOLDER: i32 = 125;
    /// The program can't be executed.
    pub(crate) const NOT_EXECUTABLE: i32 = 126;
    /// The program is not there.
    pub(crate) const NO_PROGRAM: i32 = 127;
}

/// Folder of copied programs on a host, in the words of a shell.
const COPIES: &str = "\"${XDG_CACHE_HOME:-$HOME/.cache}\"/disco/programs";
/// Days after which the next copy removes a copy that no run has used.
const DAYS_UNUSED: u32 = 7;

/// The file of a program.
pub(super) enum Program<'a> {
    /// Found in the host's folder, or by its `PATH`.
    Named(&'a str),
    /// Copied before.
    Copied(&'a Copied),
}

/// A copy of a program's file, by the hash of its content.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Copied {
    pub(super) hash: String,
    pub(super) name: String,
}

impl Copied {
    fn path(&self) -> String {
        format!("{COPIES}/{}/{}", quoted(&self.hash), quoted(&self.name))
    }
}

/// Runs a program until it ends, or until the script's standard input is closed: a second later the program gets SIGTERM, and
/// its process group SIGKILL once the program has ended, or after 5 s more. In the second, the session learns of the end of ssh,
/// which is a better reason than SIGTERM.
pub(super) fn run(folder: &str, program: &Program<'_>, args: &[String], variables: &[(String, String)]) -> String {
    let (program, check) = match program {
        Program::Named(name) => {
            let program = quoted(name);
            let find = if name.contains('/') { "[ -e" } else { "command -v" };
            let end = if name.contains('/') { " ]" } else { " >/dev/null" };
            (program.clone(), format!("{find} {program}{end}"))
        }
        Program::Copied(copied) => (copied.path(), format!("[ -e {} ]", copied.path())),
    };
    let folder = quoted(folder);
    let variables: String =
        variables.iter().map(|(name, value)| format!("export {name}={}\n", quoted(value))).collect();
    let args: String = args.iter().map(|arg| format!(" {}", quoted(arg))).collect();
    let (no_folder, no_program) = (status::NO_FOLDER, status::NO_PROGRAM);
    // The shell has read the function as a whole when it calls it, so the rest of its input is the watcher's.
    format!(
        "run() {{
echo '{}'
cd {folder} || exit {no_folder}
{check} || exit {no_program}
{variables}exec 3<&0
echo '{}' $SSH_CONNECTION
setsid {program}{args} </dev/null 3<&- &
program=$!
{{ while read -r line; do :; done; sleep 1; kill -TERM $program; for second in 1 2 3 4 5; do sleep 1; done; kill -KILL -$program; }} <&3 >/dev/null 2>&1 3<&- &
watcher=$!
wait $program
ended=$?
kill -KILL $watcher
kill -KILL -$program 2>/dev/null
exit $ended
}}
run
",
        mark::SHELL,
        mark::PROGRAM
    )
}

/// Copies a file of `bytes` bytes, which follows on standard input once the script has asked for it, unless the host has it.
/// Removes copies that were not used for a week.
pub(super) fn copy(copied: &Copied, bytes: usize) -> String {
    let (file, hash, no_copy) = (copied.path(), quoted(&copied.hash), status::NO_COPY);
    format!(
        "run() {{
echo '{}'
umask 077
folder={COPIES}/{hash}
file={file}
mkdir -p \"$folder\" && touch \"$folder\" || exit {no_copy}
find {COPIES} -mindepth 1 -maxdepth 1 -mtime +{DAYS_UNUSED} -exec rm -rf {{}} +
[ -x \"$file\" ] && exit
part=$file.$(uname -n).$$
echo '{}'
head -c {bytes} >\"$part\" && [ $(wc -c <\"$part\") -eq {bytes} ] && chmod 700 \"$part\" && mv -f \"$part\" \"$file\" && exit
rm -f \"$part\"
exit {no_copy}
}}
run
",
        mark::SHELL,
        mark::COPY
    )
}

/// `text` as one word of a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Output, Stdio};

    use super::*;

    /// Executes a script with an input that stays open until the script has ended.
    fn execute(script: &str) -> Output {
        let mut shell = Command::new("/bin/sh").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = shell.stdin.take().unwrap();
        input.write_all(script.as_bytes()).unwrap();
        let output = shell.wait_with_output().unwrap();
        drop(input);
        output
    }

    #[test]
    fn arguments_and_variables_reach_the_program_unchanged() {
        let args = ["it's", "$(touch x) `x` \\ \"", "two\nlines", "", "-n", "*"].map(str::to_owned);
        let variables = [("DISCO_A".to_owned(), "a'b $HOME".to_owned())];
        let words = [&["%s|".to_owned()], &args[..]].concat();
        let said = execute(&run("/", &Program::Named("printf"), &words, &[])).stdout;
        let start = format!("{}\n{}\n", mark::SHELL, mark::PROGRAM);
        assert_eq!(String::from_utf8(said).unwrap(), format!("{start}{}|", args.join("|")));
        let shell = ["-c".to_owned(), "printf %s \"$DISCO_A\"; exit 3".to_owned()];
        let ran = execute(&run("/", &Program::Named("/bin/sh"), &shell, &variables));
        assert_eq!(String::from_utf8(ran.stdout).unwrap(), format!("{start}a'b $HOME"));
        assert_eq!(ran.status.code(), Some(3));
    }

    #[test]
    fn an_absent_folder_and_an_absent_program_have_their_statuses() {
        let status = |folder, program| execute(&run(folder, &Program::Named(program), &[], &[])).status.code();
        assert_eq!(status("/no such folder", "true"), Some(status::NO_FOLDER));
        assert_eq!(status("/", "./no-such-program"), Some(status::NO_PROGRAM));
        assert_eq!(status("/", "no-such-program"), Some(status::NO_PROGRAM));
        assert_eq!(status("/", "/etc/passwd"), Some(status::NOT_EXECUTABLE));
    }
}
