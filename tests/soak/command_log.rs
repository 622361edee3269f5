//! The command log of a random session.

use std::path::{Path, PathBuf};
use std::{env, fs, process};

use disco::Builder;
use disco::trace::command_log::{Line, Reader};

use crate::user::Wrong;

/// A file for the commands of a session, removed on drop.
pub(crate) struct CommandLog(PathBuf);

impl CommandLog {
    pub(crate) fn new() -> Self {
        Self(env::temp_dir().join(format!("disco-soak-{}.jsonl.gz", process::id())))
    }

    pub(crate) fn record(&self, builder: Builder) -> Builder {
        builder.record(&self.0)
    }

    /// Checks that the file of a session that has ended is whole: its commands have consecutive numbers, waits and calls
    /// are those of earlier commands.
    pub(crate) fn check(&self) -> Wrong<()> {
        check(&self.0).map_err(|why| format!("command log: {why}"))
    }
}

impl Drop for CommandLog {
    fn drop(&mut self) {
        // A session without a log has no file.
        _ = fs::remove_file(&self.0);
    }
}

fn check(path: &Path) -> Wrong<()> {
    let (mut commands, mut last_call, mut end) = (0, 0, None);
    for line in Reader::open(path).map_err(|error| error.to_string())? {
        let number = match line.map_err(|error| error.to_string())? {
            Line::Command(command) => {
                commands += 1;
                if command.number != commands {
                    return Err(format!("command {commands} has number {}", command.number));
                }
                continue;
            }
            Line::Wait(wait) => wait.number,
            // A call may stand before its command.
            Line::Call(call) => {
                last_call = last_call.max(call.number);
                continue;
            }
            Line::End(last) => {
                end = Some(last.commands);
                continue;
            }
            _ => continue,
        };
        if number > commands {
            return Err(format!("a wait for command {number}, but the log has {commands}"));
        }
    }
    if last_call > commands {
        return Err(format!("a call of command {last_call}, but the log has {commands}"));
    }
    match end {
        Some(number) if number == commands => Ok(()),
        other => Err(format!("{commands} commands, but the end has {other:?}")),
    }
}
