//! The `disco` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    disco_cli::main("disco")
}
