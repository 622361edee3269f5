//! The commands of a session in their order, and the waits for their replies.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use futures_lite::future;

use super::deadline_watch::DeadlineWatch;
use super::dref::FreedIds;
use super::fleet::Lost;
use super::lane_set::Lanes;
use super::large::{Transfers, Values, check_crossing, payload_len};
use super::order::{Next, Order, RegisterIds};
use super::reply_table::ReplyTable;
use super::sleepers::Sleepers;
use super::ticker::Ticker;
use super::timeline::Recorder;
use super::{Arguments, DRef, Deadlines};
use crate::calling::Calling;
use crate::channel::{FrameSize, SMALL_FRAME};
use crate::command::Command;
use crate::error::{Error, LossCause, LostPeer, Result};
use crate::function;
use crate::id::RegisterId;
use crate::metrics;
use crate::sync;
use crate::wire::Frame;
use crate::world::World;

/// Orders the commands of a session, and awaits the replies. Everything that changes the workers lies above it.
pub(crate) struct CommandStream {
    pub(crate) limits: Deadlines,
    pub(crate) reply_table: Arc<ReplyTable>,
    pub(crate) freed_ids: Arc<FreedIds>,
    /// The order ticket: its holder may send. Never held across an await, so that no caller depends on the polling of
    /// another caller's future.
    pub(crate) order: Arc<Mutex<Order>>,
    /// Commands are refused.
    pub(crate) closed: AtomicBool,
    /// A wait has passed its deadline since the last time all workers answered.
    pub(crate) is_hung: AtomicBool,
    pub(crate) ticker: Ticker,
    pub(super) sleepers: Sleepers,
    pub(super) transfers: Transfers,
    /// Set if there is a timeline.
    pub(crate) recorder: Option<Recorder>,
}

impl CommandStream {
    /// The stream to `lanes`, which have started and report to `reply_table`.
    pub(crate) fn new(lanes: Lanes, reply_table: Arc<ReplyTable>, limits: Deadlines) -> Self {
        let sleepers = Sleepers::default();
        sleepers.set_lanes(&lanes);
        Self {
            limits,
            reply_table,
            freed_ids: Arc::default(),
            order: Arc::new(Mutex::new(Order::new(lanes))),
            closed: AtomicBool::new(false),
            is_hung: AtomicBool::new(false),
            ticker: Ticker::default(),
            sleepers,
            transfers: Transfers::default(),
            recorder: None,
        }
    }

    /// The workers and their groups.
    pub(crate) fn world(&self) -> World {
        self.reply_table.members().world()
    }

    /// Runs `go` under the order ticket as soon as all lanes have capacity, and no caller [drains](Self::drain) the session.
    pub(crate) async fn turn<T>(
        &self,
        operation: &str,
        live: fn(&ReplyTable) -> Result<()>,
        go: impl FnOnce(&mut Order) -> Result<T>,
    ) -> Result<T> {
        self.turn_with(operation, live, Values::SMALL, |order, _| go(order)).await
    }

    /// [`CommandStream::turn`] for a command with these values. Lanes with a backlog of large commands hold up large
    /// commands only.
    pub(super) async fn turn_with<T>(
        &self,
        operation: &str,
        live: fn(&ReplyTable) -> Result<()>,
        mut values: Values,
        go: impl FnOnce(&mut Order, Values) -> Result<T>,
    ) -> Result<T> {
        let mut full = None;
        let size = values.size();
        loop {
            {
                let mut order = self.order();
                self.check(operation, live)?;
                if order.is_open(size) {
                    values.fit(&order.lanes);
                    return go(&mut order, values);
                }
            }
            let (ticks, watch) =
                &mut **full.get_or_insert_with(|| Box::new((self.ticker.start(), DeadlineWatch::new())));
            let (room, tick) = (self.reply_table.has_capacity.listen(), ticks.next());
            // A change before this listener was registered wakes no one, so the condition is checked again.
            self.check(operation, live)?;
            if !self.order().is_open(size) {
                future::or(room, tick).await;
                self.check_stall(watch, size)?;
            }
        }
    }

    pub(crate) fn order(&self) -> MutexGuard<'_, Order> {
        sync::lock(&self.order)
    }

    pub(crate) fn check(&self, operation: &str, live: fn(&ReplyTable) -> Result<()>) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            Err(Error::Closed(operation.to_owned()))
        } else {
            live(&self.reply_table).map_err(|error| match error {
                Error::Worker(failure) => Error::Earlier { operation: operation.to_owned(), failure },
                other => other,
            })
        }
    }

    /// The lanes of the session. Not for the holder of the order ticket.
    pub(crate) fn lanes(&self) -> Lanes {
        self.order().lanes.clone()
    }

    pub(crate) fn set_lanes(&self, order: &mut Order, lanes: Lanes) {
        self.reply_table.set_lanes(&lanes);
        self.sleepers.set_lanes(&lanes);
        order.lanes = lanes;
    }

    /// Passes the next command, with the ids freed since the last, to all lanes.
    pub(crate) fn send(
        &self,
        order: &mut Order,
        mut values: Values,
        make: impl FnOnce(&mut RegisterIds) -> Result<Command>,
    ) -> Result<()> {
        let Next { lanes, functions, registers, frame } = order.next(&self.freed_ids, &values, make)?;
        let kept = || if lanes.needs_bytes { check_crossing(lanes, &frame) } else { Ok(None) };
        let kept = lanes.check(frame.command()).and_then(|()| kept());
        let frame = match &kept {
            Ok(_) => {
                values.note_passed();
                frame
            }
            // The frame has taken a number and freed ids, which workers must get: they are sent with a no-op command.
            Err(_) => Cow::Owned(Arc::new(frame.as_noop())),
        };
        if let Some(recorder) = &self.recorder {
            recorder.note_submitted(lanes, functions, registers, &frame);
        }
        self.pass(lanes, &frame).and(kept.map(drop))
    }

    /// Passes a frame to all lanes. A lane that fails ends the session. All other lanes get the frame, so that their workers
    /// can go on once the workers of the failed lane are replaced.
    fn pass(&self, lanes: &Lanes, frame: &Arc<Frame>) -> Result<()> {
        self.reply_table.note_command(frame.seq());
        metrics::command(frame.command().name());
        let mut result = Ok(());
        for lane in lanes.iter() {
            if let Err(error) = lane.send(frame) {
                let error = match error {
                    // The lane has not reported the loss of its workers yet.
                    Error::Closed(_) => {
                        let workers = lanes.members.workers(lane.facts().workers);
                        let peer = LostPeer::Workers { workers, node: None };
                        Error::peer_lost(peer, LossCause::Other("the lane takes no commands".to_owned()))
                    }
                    other => other,
                };
                tracing::error!(%error, ?lane, "session lost");
                self.reply_table.lose(Lost::Lane(lanes.owned(lane).collect()), &error);
                result = result.and(Err(error));
            }
        }
        result
    }

    /// Submits a command that sets a register.
    fn define(&self, order: &mut Order, values: Values, make: impl FnOnce(RegisterId) -> Command) -> Result<DRef> {
        let (mut handle, command) = (None, order.next_seq());
        self.send(order, values, |registers| {
            let register = registers.take()?;
            // Dropped, and thereby freed, if the command is not sent.
            handle = Some(DRef::new(register, command, &self.freed_ids));
            Ok(make(register))
        })?;
        handle.ok_or_else(|| Error::state("no register was taken"))
    }

    /// Submits a call; `args` are empty afterwards.
    pub(super) fn call(
        &self,
        order: &mut Order,
        values: Values,
        function: &DRef,
        args: &mut Arguments,
    ) -> Result<DRef> {
        self.freed_ids.check(function)?;
        args.check(&self.freed_ids)?;
        let (args_of_call, parts, results) = (std::mem::take(&mut args.values), args.parts.take(), args.results.take());
        let (command, streams, answers) = (order.next_seq(), results.is_some(), args.answers.take());
        if let Some(results) = results {
            self.reply_table.begin_stream(command, results);
        }
        let call = |register| {
            let (function, args) = (function.register(), args_of_call);
            if parts.is_none() && !streams && answers.is_none() {
                return Command::CallPacked { register, function, args };
            }
            Command::CallWith { register, function, args, calling: Calling { parts, streams, answers }.into() }
        };
        let handle = self.define(order, values, call);
        if streams && handle.is_err() {
            self.reply_table.end_stream(command);
        }
        // Only after the call is submitted: a dropped handle may be freed ahead of the next command.
        args.handles.clear();
        handle
    }

    /// Implements [`Session::function`](crate::session::Session::function).
    pub(crate) async fn function(&self, name: &str) -> Result<DRef> {
        self.check("function lookup", ReplyTable::check)?;
        let lanes = {
            let order = self.order();
            if let Some(known) = order.functions.get(name) {
                return Ok(known.clone());
            }
            order.lanes.clone()
        };
        // Workers that run the same program have the same functions, so a misspelt name can be refused here.
        if lanes.iter().any(|lane| lane.facts().runs_this_program) {
            function::find(name)?;
        }
        self.turn("function lookup", ReplyTable::check, |order| {
            if let Some(known) = order.functions.get(name) {
                return Ok(known.clone());
            }
            let handle =
                self.define(order, Values::SMALL, |register| Command::GetGlobalFunc { register, name: name.into() })?;
            order.functions.insert(name, handle.clone());
            Ok(handle)
        })
        .await
    }

    /// Implements [`Session::submit`](crate::session::Session::submit).
    pub(crate) async fn submit(&self, function: &DRef, mut args: Arguments) -> Result<DRef> {
        self.check("call", ReplyTable::check)?;
        let values = self.prepare("call", None, ReplyTable::check, &args.values).await?;
        let call = |order: &mut Order, values| self.call(order, values, function, &mut args);
        self.explain(self.turn_with("call", ReplyTable::check, values, call).await).await
    }

    /// Submits a call that need not wait, and otherwise leaves `args` unchanged and returns none. The call would have to
    /// wait in a session that has failed if that `goes_on` by itself.
    pub(crate) fn try_submit(&self, function: &DRef, args: &mut Arguments, goes_on: bool) -> Option<Result<DRef>> {
        let mut order = self.order();
        // `submit` copies large values for other processes, without the order ticket.
        if order.lanes.needs_bytes && payload_len(&args.values) > SMALL_FRAME {
            return None;
        }
        if let Err(error) = self.check("call", ReplyTable::check) {
            return (!goes_on).then_some(Err(error));
        }
        order.is_open(FrameSize::Small).then(|| self.call(&mut order, Values::SMALL, function, args))
    }

    /// Implements [`Session::cancel`](crate::session::Session::cancel).
    pub(crate) fn cancel(&self, call: &DRef, why: &str) -> Result<()> {
        self.freed_ids.check(call)?;
        self.check("cancel", ReplyTable::check_lost)?;
        self.reply_table.cancel(call.command(), &why.into())
    }

    /// Implements [`Session::recover`](crate::session::Session::recover).
    pub(crate) async fn recover(&self) -> Result<()> {
        self.turn("recover", ReplyTable::check_lost, |order| {
            let Some(epoch) = self.reply_table.next_epoch() else { return Ok(()) };
            order.functions.begin_epoch();
            self.send(order, Values::SMALL, |_| Ok(Command::Recover { epoch }))
        })
        .await
    }
}
