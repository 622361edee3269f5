//! Runs checks in the sessions of a harness.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use disco_core::sync;
use disco_core::{Error, Reduction, Result, Session, WorkerId, World};

use super::fixture::Scope;
use super::scenario::{self, Need, Scenario};
use super::table::{self, Row};
use super::verdict::Verdict;
use super::verdicts::{CheckResult, together, verdicts};
use super::worker::SUPPORTS;
use crate::check::{Check, Outcome};
use crate::harness::{Harness, SessionSpec};
use crate::timeout::block_on;

/// All checks of one backend in one kind of session.
///
/// Checks may run on several threads at the same time. Each has a session of its own. Sessions are reused unless a
/// check has failed in them. A check that fails in a used session runs again in a new one, so that an earlier check
/// can't make it fail.
pub struct Suite {
    harness: Arc<dyn Harness>,
    idle: Mutex<Vec<Used>>,
    /// Texts about sessions that a check has left broken.
    broken: Mutex<Vec<String>>,
    runs: AtomicI64,
}

/// A session that waits for its next check.
struct Used {
    spec: SessionSpec,
    session: Box<dyn Session>,
    /// The last check in it.
    last: String,
}

impl Suite {
    /// The suite of a harness. Nothing starts before a check is run.
    pub fn new(harness: Arc<dyn Harness>) -> Self {
        Self { harness, idle: Mutex::default(), broken: Mutex::default(), runs: AtomicI64::new(0) }
    }

    /// All checks. They are the same for every harness.
    pub fn checks() -> Vec<Check> {
        let rows = table::all().map(|row| row.to_string());
        rows.chain(scenario::all().map(|scenario| scenario.to_string())).map(Check::new).collect()
    }

    /// Runs one check in all suitable worlds of the harness.
    pub fn run(&self, check: &Check) -> Outcome {
        let ran = match (table::find(check.name()), scenario::find(check.name())) {
            (Some(row), _) => self.run_row(&row, check.name()),
            (None, Some(scenario)) => self.run_scenario(scenario, check.name()),
            (None, None) => Err("there is no such check".into()),
        };
        ran.unwrap_or_else(|why| Outcome::Failed { why })
    }

    /// Ends the sessions.
    ///
    /// # Errors
    /// A check has passed but left its session broken, so that another check failed in it; with the names of both and
    /// the failure. Or the shutdown of a session failed.
    pub fn close(&self) -> Result<()> {
        let idle = std::mem::take(&mut *sync::lock(&self.idle));
        let ended = |used: &Used| {
            let did_not = |error| Error::state(format!("after the checks, a session did not end: {error}"));
            pollster::block_on(used.session.shutdown()).map_err(did_not)
        };
        let broken = std::mem::take(&mut *sync::lock(&self.broken));
        idle.iter().try_for_each(ended)?;
        if broken.is_empty() { Ok(()) } else { Err(Error::state(broken.join("\n"))) }
    }

    fn run_row(&self, row: &Row, name: &str) -> CheckResult<Outcome> {
        let mut executed = 0;
        for world in self.worlds_for(row) {
            let scopes = || {
                Scope::ALL.into_iter().enumerate().filter(|(_, scope)| match scope {
                    Scope::World => true,
                    Scope::Group => world.groups() > 1 && !row.is_large(),
                    Scope::Split => world.size() > 1 && !row.is_large(),
                })
            };
            let ran = self.in_session(name, SessionSpec::new(world), async |session| {
                let mut executed = 0;
                for (index, scope) in scopes() {
                    let run = self.runs.fetch_add(1, Ordering::Relaxed);
                    let expected = (self.harness.is_exact(), self.harness.detects_dropped_peers());
                    let args = (name, index as i64, run, expected.0, expected.1);
                    let verdicts = verdicts(session, args).await.map_err(|error| error.to_string())?;
                    match together(&verdicts, self.harness.is_exact()) {
                        Verdict::Passed { executed: more, .. } => executed += more,
                        Verdict::Skipped(reason) => return Ok(Err(reason)),
                        Verdict::Wrong(why) => return Err(format!("on the communicator of {}: {why}", scope.name())),
                    }
                }
                Ok(Ok(executed))
            })?;
            match ran {
                Ok(more) => executed += more,
                Err(reason) => return Ok(Outcome::Skipped { reason }),
            }
        }
        Ok(Outcome::Passed { executed })
    }

    fn worlds_for(&self, row: &Row) -> Vec<World> {
        let worlds = self.harness.worlds();
        if row.is_large() {
            let middle = worlds.iter().position(|world| world.size() == 3).unwrap_or(worlds.len().saturating_sub(1));
            worlds.into_iter().skip(middle).take(1).collect()
        } else {
            worlds
        }
    }

    fn run_scenario(&self, scenario: Scenario, name: &str) -> CheckResult<Outcome> {
        if let Some(reason) = scenario.is_beyond(&*self.harness) {
            return Ok(Outcome::Skipped { reason });
        }
        let worlds: Vec<World> = self.harness.worlds().into_iter().filter(|world| world.size() > 1).collect();
        let mut executed = 0;
        for world in &worlds {
            let spec = scenario.spec(*world, &*self.harness);
            let ran = self.in_session(name, spec, async |session| {
                let run = self.runs.fetch_add(1, Ordering::Relaxed);
                match lacking(session, scenario.needs()).await.map_err(|error| error.to_string())? {
                    Some(reason) => Ok(Err(reason)),
                    None => scenario.run(session, &*self.harness, run).await.map(Ok),
                }
            })?;
            match ran {
                Ok(more) => executed += more,
                Err(reason) => return Ok(Outcome::Skipped { reason }),
            }
        }
        if worlds.is_empty() {
            Ok(Outcome::Skipped { reason: "it takes two workers".into() })
        } else {
            Ok(Outcome::Passed { executed })
        }
    }

    /// Runs `body` in a session of the pool, which no other check uses meanwhile. A failure in a used session counts
    /// only if `body` fails in a new session too.
    fn in_session<T>(
        &self,
        check: &str,
        spec: SessionSpec,
        body: impl AsyncFn(&dyn Session) -> CheckResult<T>,
    ) -> CheckResult<T> {
        let place = |why: String| {
            let (size, groups) = (spec.world.size(), spec.world.groups());
            let groups = if groups > 1 { format!(" in {groups} groups") } else { String::new() };
            format!("{size} workers{groups}: {why}")
        };
        let mut suspicion = None;
        if let Some(Used { session, last, .. }) = self.used(&spec) {
            match self.attempt(&*session, &body) {
                Ok(result) => {
                    self.keep(check, spec, session);
                    return Ok(result);
                }
                Err(why) => suspicion = Some((last, why)),
            }
        }
        let session = self.session(&spec).map_err(|error| place(error.to_string()))?;
        let result = self.attempt(&*session, &body).map_err(place)?;
        if let Some((last, why)) = suspicion {
            let why = place(why);
            sync::lock(&self.broken).push(format!(
                "`{check}` passes in a new session, and fails in one that `{last}` has left broken: {why}"
            ));
        }
        self.keep(check, spec, session);
        Ok(result)
    }

    /// Runs `body`, and then checks that the session still works.
    fn attempt<T>(&self, session: &dyn Session, body: &impl AsyncFn(&dyn Session) -> CheckResult<T>) -> CheckResult<T> {
        let limit = self.harness.check_timeout();
        let ended = async {
            let result = body(session).await?;
            session.sync_all().await.map_err(|error| format!("the session is broken afterwards: {error}"))?;
            Ok(result)
        };
        block_on(ended, limit).unwrap_or_else(|| Err(format!("no end after {limit:?}")))
    }

    fn keep(&self, check: &str, spec: SessionSpec, session: Box<dyn Session>) {
        sync::lock(&self.idle).push(Used { spec, session, last: check.to_owned() });
    }

    fn used(&self, spec: &SessionSpec) -> Option<Used> {
        let mut idle = sync::lock(&self.idle);
        let at = idle.iter().position(|used| used.spec == *spec)?;
        Some(idle.swap_remove(at))
    }

    fn session(&self, spec: &SessionSpec) -> Result<Box<dyn Session>> {
        let session = self.harness.start(spec)?;
        let connect = || format!("init_ccl: no end after {:?}", self.harness.check_timeout());
        block_on(session.init_ccl(self.harness.backend(), &self.harness.devices()), self.harness.check_timeout())
            .unwrap_or_else(|| Err(Error::invalid(connect())))?;
        Ok(session)
    }
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suite").field("harness", &self.harness).finish_non_exhaustive()
    }
}

/// A text about the first of these operations that worker 0 lacks.
async fn lacking(session: &dyn Session, needs: Vec<Need>) -> Result<Option<String>> {
    let supports = session.function(SUPPORTS).await?;
    for (kind, dtype, reduction) in needs {
        let reduction = reduction.map_or("", Reduction::name);
        let handle = session.call(&supports, (kind.name(), dtype, reduction)).await?;
        if !session.get::<bool>(&handle, WorkerId::new(0)).await? {
            let space = if reduction.is_empty() { "" } else { " " };
            return Ok(Some(format!("there is no {kind}{space}{reduction} of {dtype}")));
        }
    }
    Ok(None)
}
