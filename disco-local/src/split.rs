//! Communicators of some of a group's ranks.
//!
//! ```text
//! meet   each rank shows its color and key; all work out who is together
//! meet   the first of each color has made a group and shows its name
//! sync   the others have taken it; its maker takes the name back
//! ```

use std::sync::Arc;

use disco_core::{Error, Rank, Result};

use crate::agree::Call;
use crate::board::{Board, Presence};
use crate::group::Group;
use crate::home::Home;
use crate::turn::Turn;
use crate::{meeting, processes};

/// A rank's place in a communicator that a split made.
pub(crate) struct Seat {
    pub(crate) group: Arc<Group>,
    pub(crate) rank: Rank,
}

/// Takes this rank's seat among those who wish for the same color; none without a color.
pub(crate) fn run(turn: &mut Turn<'_>, color: Option<u32>, key: i32) -> Result<Option<Seat>> {
    let wish = color.map_or(0, |color| 1 << 32 | u64::from(color));
    turn.meet(Call::Split, [wish, u64::from(key.cast_unsigned())].into_iter())?;
    let members = members(turn, wish);
    let (me, parent) = (turn.rank(), turn.group().clone());
    let made = match members.first() {
        Some(&first) if first == me => Some(Offer::make(&parent, &members)?),
        _ => None,
    };
    turn.meet(Call::Split, made.iter().map(|offer| offer.name))?;
    let seat = match (&made, members.iter().position(|member| *member == me)) {
        (_, None) => None,
        (Some(offer), Some(rank)) => Some((offer.group.clone(), rank)),
        (None, Some(rank)) => {
            let name = members.first().map_or(0, |&first| turn.word(first, 0));
            Some((take(turn, &members, name)?, rank))
        }
    };
    turn.sync()?;
    Ok(seat.map(|(group, rank)| Seat { group, rank: Rank::new(rank as u32) }))
}

/// The ranks that wish for the same, by key, then by rank.
fn members(turn: &Turn<'_>, wish: u64) -> Vec<usize> {
    let key = |rank: usize| (turn.word(rank, 1) as u32).cast_signed();
    let mut members: Vec<usize> = (0..turn.size()).filter(|&rank| wish != 0 && turn.word(rank, 0) == wish).collect();
    members.sort_by_key(|&rank| key(rank));
    members
}

/// A group that others can take by its name, until this is dropped.
struct Offer {
    name: u64,
    group: Arc<Group>,
    parent: Arc<Group>,
}

impl Offer {
    fn make(parent: &Arc<Group>, members: &[usize]) -> Result<Self> {
        let (name, group) = match &parent.home {
            Home::Threads => {
                let group = parent.child(members.len());
                (meeting::offer(&group), group)
            }
            Home::Processes(site) => {
                let board = Board::create(members.len(), Presence::Here).map_err(in_split)?;
                let name = processes::share(&*site.descriptors, board.segment()).map_err(in_split)?;
                (name, parent.child_on(board, Home::Processes(site.part(members))))
            }
        };
        Ok(Self { name, group, parent: parent.clone() })
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        match &self.parent.home {
            Home::Threads => meeting::take_back(self.name),
            Home::Processes(site) => processes::take_back(&*site.descriptors, self.name),
        }
    }
}

/// The group that the first of the members has made.
fn take(turn: &Turn<'_>, members: &[usize], name: u64) -> Result<Arc<Group>> {
    let parent = turn.group();
    match &parent.home {
        Home::Threads => meeting::find(name).ok_or_else(|| Error::invalid("split: nobody has made the communicator")),
        Home::Processes(site) => {
            let board = processes::open_board(&*site.descriptors, name, turn.deadline()).map_err(in_split)?;
            match board.size() == members.len() {
                true => Ok(parent.child_on(board, Home::Processes(site.part(members)))),
                false => Err(Error::protocol(format!("split: a board of {} ranks", board.size()))),
            }
        }
    }
}

fn in_split(error: Error) -> Error {
    processes::during("split", error)
}
