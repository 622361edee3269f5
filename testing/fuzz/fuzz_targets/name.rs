//! Names of devices, dtypes and reductions in programs and command lines: an accepted name is printed as a name that
//! parses to the same value.

#![no_main]

use std::fmt::{Debug, Display};
use std::str::FromStr;

use disco_core::{DType, Device, Error, Reduction};

disco_fuzz::target!(check, seeds);

fn check(bytes: &[u8]) -> Result<(), Error> {
    let text = std::str::from_utf8(bytes).map_err(|_| Error::invalid("not UTF-8"))?;
    read::<Device>(text).or_else(|_| read::<DType>(text)).or_else(|_| read::<Reduction>(text))
}

fn read<T: FromStr<Err: Into<Error> + Debug> + Debug + Display + PartialEq>(text: &str) -> Result<(), Error> {
    let value: T = text.parse().map_err(Into::into)?;
    assert_eq!(value.to_string().parse::<T>().expect("a name that was printed can be read"), value);
    Ok(())
}

fn seeds() -> Vec<Vec<u8>> {
    ["cpu", "cuda:0", "rocm:12", "bf16", "f8e4m3", "avg"].map(|text| text.as_bytes().to_vec()).to_vec()
}
