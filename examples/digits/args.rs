//! The options of the command line.

use std::num::NonZeroU16;
use std::path::PathBuf;
use std::{env, process};

use disco::{SessionKind, Settings};
use lexopt::{Arg, Parser, ValueExt as _};

use crate::train::Failure;

const HELP: &str = "\
Train a small network on handwritten digits, data-parallel

Usage: digits [OPTIONS]

Options:
      --workers NUMBER     Number of workers; must divide 64, the rows of a batch [env: DISCO_WORKERS] [default: one for each
                           node and task of a launcher, else 4]
      --backend NAME       Backend of the data plane [env: DISCO_BACKEND] [default: local]
      --session KIND       Kind of session: threads, processes, nodes [env: DISCO_SESSION] [default: nodes with DISCO_NODES,
                           processes for `mpi`, else threads]
      --devices ORDINALS   Device of each worker, separated by commas [env: DISCO_DEVICES] [default: worker i takes device i]
      --epochs NUMBER      Number of passes over all training images [default: 30]
      --checkpoint FOLDER  Folder for checkpoints: one after each epoch; a later run continues from the newest
      --replace            Replace lost workers, and continue from the newest checkpoint; without checkpoints, from the start.
                           Workers must be processes
      --json               Print the result as one JSON object, without progress
  -h, --help               Print help
";

/// What the options say, and the environment where they say nothing.
pub(crate) struct Args {
    /// The session, its backend and devices.
    pub(crate) settings: Settings,
    /// Number of passes over all training images; at least 1.
    pub(crate) epochs: u16,
    /// Folder for checkpoints.
    pub(crate) checkpoint: Option<PathBuf>,
    /// Whether to replace lost workers.
    pub(crate) replace: bool,
    /// Whether to print the result as JSON.
    pub(crate) json: bool,
}

impl Args {
    /// Reads the options of this process. With `--help`, prints the options and exits.
    ///
    /// # Errors
    /// An option is unknown or has a wrong value; [`Settings::from_env`] fails.
    pub(crate) fn parse() -> Result<Self, Failure> {
        let settings = Settings::from_env()?;
        let mut args = Self { settings, epochs: 30, checkpoint: None, replace: false, json: false };
        if args.settings.workers == 1 && env::var_os("DISCO_WORKERS").is_none() {
            args.settings.workers = 4;
        }
        let (mut session, mut options) = (None, Parser::from_env());
        while let Some(option) = options.next()? {
            match option {
                Arg::Long("workers") => args.settings.workers = options.value()?.parse()?,
                Arg::Long("backend") => args.settings.backend = options.value()?.parse()?,
                Arg::Long("session") => session = Some(options.value()?.parse::<SessionKind>()?),
                Arg::Long("devices") => {
                    let ordinals = options.value()?;
                    args.settings.devices =
                        ordinals.parse_with(|text| text.split(',').map(str::parse).collect::<Result<_, _>>())?;
                }
                Arg::Long("epochs") => args.epochs = options.value()?.parse::<NonZeroU16>()?.get(),
                Arg::Long("checkpoint") => args.checkpoint = Some(options.value()?.into()),
                Arg::Long("replace") => args.replace = true,
                Arg::Long("json") => args.json = true,
                Arg::Short('h') | Arg::Long("help") => {
                    print!("{HELP}");
                    process::exit(0);
                }
                unknown => return Err(unknown.unexpected().into()),
            }
        }
        if args.settings.session == SessionKind::Threads {
            args.settings.session = SessionKind::of(&args.settings.backend);
        }
        args.settings.session = session.unwrap_or(args.settings.session);
        Ok(args)
    }
}
