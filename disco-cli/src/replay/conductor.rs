//! The controller's side of a replay: submits the commands of a log at their times.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use disco::{Arguments, DRef, LaneSession, Session, SessionExt, Value, WorkerId, block_on};
use disco_core::backend;
use disco_trace::command_log::{Command, CommandKind, Described, Line, Reader, Wait};

use super::placement::Placement;
use super::plan::{Pace, Plan};
use super::player::{self, Measured, Sum, pause};
use super::recorded::{INIT_CCL, Recorded};
use super::values::Values;

/// Shorter pauses of the controller are not repeated: submitting a command takes as long.
const MIN_PAUSE: Duration = Duration::from_micros(5);

/// Submits commands.
pub(super) struct Conductor<'a> {
    session: &'a LaneSession,
    recorded: &'a Recorded,
    placement: Placement,
    pace: Pace,
    /// The backend and the devices of `init_ccl`.
    data_plane: Option<(String, Vec<i64>)>,
    values: Values,
    /// The handles by the recorded registers. The registers of the replay may be others.
    handles: HashMap<u32, DRef>,
    makers: Makers,
    /// The stand-in for functions whose names are unknown.
    unnamed: DRef,
    /// Waits that have begun and not ended.
    waits: HashMap<u64, Pin<Box<dyn Future<Output = disco::Result<()>> + 'a>>>,
    clock: Clock,
    pub(super) counts: Counts,
}

/// Functions and objects of the workers, made before the first command is replayed.
struct Makers {
    player: DRef,
    stand_in: DRef,
    real: DRef,
    measured: DRef,
}

/// Numbers and times of commands and waits, recorded and replayed.
#[derive(Default)]
pub(super) struct Counts {
    /// Recorded and replayed commands, by kind.
    pub(super) commands: BTreeMap<CommandKind, (u64, u64)>,
    /// Number of commands that the session of the replay has counted.
    pub(super) submitted: u64,
    /// Recorded and replayed waits, by kind.
    pub(super) waits: BTreeMap<CommandKind, (Sum, Sum)>,
    /// Time from the first command to the end of the last command or wait, recorded and replayed.
    pub(super) total: (Duration, Duration),
}

/// The times of the last command or wait.
struct Clock {
    recorded: u64,
    replayed: Instant,
    /// For waits that have not ended: the kind of the command, and its times of submission, recorded and replayed.
    waits: HashMap<u64, (CommandKind, u64, Instant)>,
    first: Option<(u64, Instant)>,
}

impl<'a> Conductor<'a> {
    /// Gives the workers their plans.
    ///
    /// # Errors
    /// The session fails, or a plan is too large for it.
    pub(super) fn new(
        session: &'a LaneSession,
        recorded: &'a Recorded,
        placement: Placement,
        pace: Pace,
        data_plane: Option<(String, Vec<i64>)>,
        plans: Vec<Plan>,
    ) -> anyhow::Result<Self> {
        let prepared = block_on(async {
            let stand_in = session.function(player::STAND_IN).await?;
            let bytes = session.call_named(player::REAL, (player::REAL,)).await?;
            for (worker, plan) in plans.into_iter().enumerate() {
                let plan = serde_json::to_vec(&plan)?;
                session.set(&bytes, WorkerId::new(worker as u32), plan.into()).await?;
            }
            let player = session.call_named(player::PLAYER, (&bytes,)).await?;
            let unnamed = session.call(&stand_in, (&player, "(unnamed)")).await?;
            let (real, measured) = (session.function(player::REAL).await?, session.function(player::MEASURED).await?);
            session.sync_all().await?;
            anyhow::Ok((Makers { player, stand_in, real, measured }, unnamed))
        });
        let (makers, unnamed) = prepared.context("the workers can't be prepared for the replay")?;
        let clock = Clock { recorded: 0, replayed: Instant::now(), waits: HashMap::new(), first: None };
        let (values, handles, waits, counts) = (Values::default(), HashMap::new(), HashMap::new(), Counts::default());
        Ok(Self {
            session,
            recorded,
            placement,
            pace,
            data_plane,
            values,
            handles,
            makers,
            unnamed,
            waits,
            clock,
            counts,
        })
    }

    /// Replays the commands of the log. Returns the measurements of each worker.
    ///
    /// # Errors
    /// The log can't be read, or the session fails; the error has the command's number in the log.
    pub(super) fn run(&mut self, path: &Path) -> anyhow::Result<Vec<Measured>> {
        let before = self.session.status().commands;
        // The plan has the content of all other lines.
        let is_replayed =
            |line: &Result<Line, _>| matches!(line, Ok(Line::Command(_) | Line::Freed(_) | Line::Wait(_)) | Err(_));
        let mut lines = Reader::open(path)?.filter(is_replayed).peekable();
        while let Some(line) = lines.next() {
            match line? {
                Line::Freed(freed) => self.free(&freed),
                // The session is shut down after the report.
                Line::Command(command) if command.kind == CommandKind::Shutdown => {}
                Line::Command(command) => {
                    let number = command.number;
                    self.counts.commands.entry(command.kind).or_default().0 += 1;
                    if self.recorded.is_left_out(number) {
                        self.free(&command.freed);
                        self.clock.recorded = command.time_ns;
                        continue;
                    }
                    let next = lines.peek();
                    let is_awaited = matches!(next, Some(Ok(Line::Wait(wait))) if wait.number == number);
                    let kind = command.kind.name();
                    self.command(command, is_awaited)
                        .with_context(|| format!("command {number} of the log, `{kind}`, can't be replayed"))?;
                }
                Line::Wait(wait) if self.recorded.is_left_out(wait.number) => self.clock.recorded = wait.time_ns,
                Line::Wait(wait) => {
                    let number = wait.number;
                    self.wait(&wait).with_context(|| format!("the wait for command {number} of the log has failed"))?;
                }
                _ => {}
            }
        }
        block_on(self.session.sync_all()).context("the workers have failed in the replay")?;
        if let Some((recorded, replayed)) = self.clock.first {
            let recorded = Duration::from_nanos(self.clock.recorded.saturating_sub(recorded));
            self.counts.total = (recorded, self.clock.replayed - replayed);
        }
        // The sync is not a command of the log.
        self.counts.submitted = self.session.status().commands - before - 1;
        let measured = block_on(async {
            let measured = self.session.call(&self.makers.measured, (&self.makers.player,)).await?;
            self.session.get_all_as::<String>(&measured).await
        })?;
        Ok(measured.iter().map(|json| serde_json::from_str(json)).collect::<Result<_, _>>()?)
    }

    fn free(&mut self, registers: &[u32]) {
        registers.iter().for_each(|register| _ = self.handles.remove(register));
    }

    /// Submits a command. `is_awaited` says that the next line is the wait for its replies.
    fn command(&mut self, command: Command, is_awaited: bool) -> anyhow::Result<()> {
        // Dropped handles are freed with the next command, which is this one.
        self.free(&command.freed);
        let (session, number, kind, time) = (self.session, command.number, command.kind, command.time_ns);
        self.clock.think(time, self.pace);
        let submitted = Instant::now();
        let target = WorkerId::new(self.placement.target(command.worker.unwrap_or(0) as usize) as u32);
        let handle = command.register.and_then(|register| self.handles.get(&register)).cloned();
        match kind {
            CommandKind::Function => self.look_up(&command)?,
            CommandKind::Call => self.call(&command)?,
            CommandKind::SyncWorker => {
                self.start(number, is_awaited, async move { session.sync_worker(target).await })?;
            }
            CommandKind::SyncAll => self.start(number, is_awaited, async move { session.sync_all().await })?,
            CommandKind::Get => {
                let Some(handle) = handle else { return Ok(()) };
                self.start(number, is_awaited, async move { session.get(&handle, target).await.map(drop) })?;
            }
            CommandKind::GetAll => {
                let Some(handle) = handle else { return Ok(()) };
                self.start(number, is_awaited, async move { session.get_all(&handle).await.map(drop) })?;
            }
            CommandKind::Set => {
                let (Some(handle), Some(value)) = (handle, command.args.first()) else { return Ok(()) };
                let value = self.values.value(value)?;
                self.start(number, is_awaited, async move { session.set(&handle, target, value).await })?;
            }
            CommandKind::CopyFromWorker0 | CommandKind::CopyToWorker0 => {
                let (Some(handle), Some(Described::Tensor(dtype, extents))) = (handle, command.args.first()) else {
                    return Ok(());
                };
                match kind {
                    CommandKind::CopyToWorker0 => {
                        let host = self.values.tensor(*dtype, extents)?;
                        block_on(session.copy_to_worker_0(&host, &handle))?;
                    }
                    // The worker writes this tensor, so no argument may share it.
                    _ => {
                        let host = self.values.own_tensor(*dtype, extents)?;
                        block_on(session.copy_from_worker_0(&host, &handle))?;
                    }
                }
            }
            // There is no failure to recover from, and the session is shut down after all commands.
            _ => return Ok(()),
        }
        self.counts.commands.entry(kind).or_default().1 += 1;
        if self.waits.contains_key(&number) {
            self.clock.waits.insert(number, (kind, time, submitted));
        }
        self.clock.pass(time, submitted);
        Ok(())
    }

    /// Makes the stand-in, or looks up a function that is not replaced.
    fn look_up(&mut self, command: &Command) -> anyhow::Result<()> {
        let (Some(register), Some(name)) = (command.register, &command.function) else { return Ok(()) };
        let Makers { player, stand_in, real, .. } = &self.makers;
        let call = match self.recorded.is_real(name) {
            true => block_on(self.session.call(real, (&**name,))),
            false => block_on(self.session.call(stand_in, (player, &**name))),
        };
        self.handles.insert(register, call?);
        Ok(())
    }

    fn call(&mut self, command: &Command) -> anyhow::Result<()> {
        let name = command.function.as_deref().unwrap_or_default();
        let mut args = Arguments::with_capacity(command.args.len());
        match &self.data_plane {
            Some((backend, ordinals)) if name == INIT_CCL => {
                let (backend, world) = (backend::find(backend)?, self.session.world());
                args.push(backend.name());
                args.push(backend.rendezvous(&world)?.as_bytes());
                args.push(disco::Shape::from(&ordinals[..]));
            }
            _ => {
                for arg in &command.args {
                    match arg {
                        Described::Register(register) => match self.handles.get(register) {
                            Some(handle) => args.push(handle),
                            // A command that is not replayed has set the register.
                            None => args.push(Value::None),
                        },
                        arg => args.push(self.values.value(arg)?),
                    }
                }
            }
        }
        let named = command.callee.filter(|_| command.function.is_some());
        let function = named.and_then(|register| self.handles.get(&register)).unwrap_or(&self.unnamed);
        let result = block_on(self.session.call(function, args))?;
        command.register.map(|register| self.handles.insert(register, result));
        Ok(())
    }

    /// Prepares a command with replies. A command that is awaited is submitted by the next line, any other command here.
    fn start(
        &mut self,
        number: u64,
        is_awaited: bool,
        wait: impl Future<Output = disco::Result<()>> + 'a,
    ) -> anyhow::Result<()> {
        let mut wait: Pin<Box<dyn Future<Output = disco::Result<()>> + 'a>> = Box::pin(wait);
        if !is_awaited {
            // A full lane delays the submission, so the future is polled until the session has counted the command.
            let before = self.session.status().commands;
            loop {
                match wait.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(result) => {
                        result?;
                        wait = Box::pin(async { Ok(()) });
                        break;
                    }
                    Poll::Pending if self.session.status().commands > before => break,
                    Poll::Pending => pause(MIN_PAUSE, true),
                }
            }
        }
        self.waits.insert(number, wait);
        Ok(())
    }

    fn wait(&mut self, wait: &Wait) -> anyhow::Result<()> {
        let Some(running) = self.waits.remove(&wait.number) else { return Ok(()) };
        block_on(running)?;
        let now = Instant::now();
        if let Some((kind, recorded, replayed)) = self.clock.waits.remove(&wait.number) {
            let sums = self.counts.waits.entry(kind).or_default();
            sums.0.add(wait.time_ns.saturating_sub(recorded));
            sums.1.add((now - replayed).as_nanos() as u64);
        }
        self.clock.pass(wait.time_ns, now);
        Ok(())
    }
}

impl Clock {
    /// Pauses for as long as the recorded program did before the command.
    fn think(&mut self, time: u64, pace: Pace) {
        if self.first.is_none() {
            (self.recorded, self.replayed) = (time, Instant::now());
            self.first = Some((self.recorded, self.replayed));
        }
        let due = Duration::from_nanos(pace.scaled(time.saturating_sub(self.recorded)));
        let left = due.saturating_sub(self.replayed.elapsed());
        if left >= MIN_PAUSE {
            pause(left, false);
        }
    }

    fn pass(&mut self, recorded: u64, replayed: Instant) {
        (self.recorded, self.replayed) = (recorded, replayed);
    }
}

/// The data plane of the replay: the recorded one, or `backend`.
///
/// # Errors
/// The backend is unknown, is not available, or does not reach all machines.
pub(super) fn data_plane(
    recorded: &Recorded,
    backend: Option<&str>,
    placement: Placement,
) -> anyhow::Result<Option<(String, Vec<i64>)>> {
    let Some((of_log, ordinals)) = &recorded.data_plane else { return Ok(None) };
    let name = backend.unwrap_or(of_log);
    if name == super::NO_BACKEND {
        return Ok(None);
    }
    let found = backend::find(name)?;
    let with_remedy = |error: disco::Error| anyhow!("{error}; `--backend` names another one, or `none`");
    backend::check_reach(found, &placement.replayed).map_err(with_remedy)?;
    found.probe().map_err(|error| with_remedy(error.into()))?;
    // Devices of another machine mean nothing here.
    let is_same = name == of_log && placement.replayed.size() == placement.recorded.size();
    Ok(Some((name.to_owned(), if is_same { ordinals.clone() } else { Vec::new() })))
}
