//! Split of a communicator into children.
//!
//! ```text
//! meet   each rank posts its color and key; all ranks compute the members of each child
//! meet   the first member of each child has made its group, and posts the name of the group
//! sync   the other members have opened the group; the first member withdraws the name
//! ```

use std::sync::Arc;

use disco_core::{Error, Rank, Result};

use crate::active_call::ActiveCall;
use crate::address_space::AddressSpace;
use crate::agree::Call;
use crate::board::{Board, Presence};
use crate::group::Group;
use crate::{meeting, processes};

/// A rank in a child communicator.
pub(crate) struct Child {
    pub(crate) group: Arc<Group>,
    pub(crate) rank: Rank,
}

/// Runs the split on this rank. Returns the child of the ranks with the same color, or none if `color` is none.
pub(crate) fn run(call: &mut ActiveCall<'_>, color: Option<u32>, key: i32) -> Result<Option<Child>> {
    let wanted = color.map_or(0, |color| 1 << 32 | u64::from(color));
    call.meet(Call::Split, [wanted, u64::from(key.cast_unsigned())].into_iter())?;
    let members = members(call, wanted);
    let (me, parent) = (call.rank(), call.group().clone());
    let made = match members.first() {
        Some(&first) if first == me => Some(Offer::make(&parent, &members)?),
        _ => None,
    };
    call.meet(Call::Split, made.iter().map(|offer| offer.name))?;
    let child = match (&made, members.iter().position(|member| *member == me)) {
        (_, None) => None,
        (Some(offer), Some(rank)) => Some((offer.group.clone(), rank)),
        (None, Some(rank)) => {
            let name = members.first().map_or(0, |&first| call.word(first, 0));
            // A first member that leaves after a failure closes the group.
            let group = take(call, &members, name).map_err(|error| parent.check(me).err().unwrap_or(error))?;
            Some((group, rank))
        }
    };
    call.sync()?;
    Ok(child.map(|(group, rank)| Child { group, rank: Rank::new(rank as u32) }))
}

/// The ranks with this color word, ordered by key, then by rank.
fn members(call: &ActiveCall<'_>, wanted: u64) -> Vec<usize> {
    let key = |rank: usize| (call.word(rank, 1) as u32).cast_signed();
    let mut members: Vec<usize> =
        (0..call.size()).filter(|&rank| wanted != 0 && call.word(rank, 0) == wanted).collect();
    members.sort_by_key(|&rank| key(rank));
    members
}

/// A group that other ranks can open by its name. The name is withdrawn when the offer is dropped.
struct Offer {
    name: u64,
    group: Arc<Group>,
    parent: Arc<Group>,
}

impl Offer {
    fn make(parent: &Arc<Group>, members: &[usize]) -> Result<Self> {
        let (name, group) = match &parent.address_space {
            AddressSpace::Threads => {
                let group = parent.child(members.len());
                (meeting::offer(&group), group)
            }
            AddressSpace::Processes(arenas) => {
                let board = Board::create(members.len(), Presence::Connected).map_err(in_split)?;
                let name = processes::share(&*arenas.descriptors, board.segment()).map_err(in_split)?;
                (name, parent.child_on(board, AddressSpace::Processes(arenas.part(members))))
            }
        };
        Ok(Self { name, group, parent: parent.clone() })
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        match &self.parent.address_space {
            AddressSpace::Threads => meeting::take_back(self.name),
            AddressSpace::Processes(arenas) => processes::take_back(&*arenas.descriptors, self.name),
        }
    }
}

/// Opens the group that the first member has made.
fn take(call: &ActiveCall<'_>, members: &[usize], name: u64) -> Result<Arc<Group>> {
    let parent = call.group();
    match &parent.address_space {
        AddressSpace::Threads => meeting::find(name)
            .ok_or_else(|| Error::invalid("split: the first member of the child has not made its group")),
        AddressSpace::Processes(arenas) => {
            let board = processes::open_board(&*arenas.descriptors, name, call.deadline()).map_err(in_split)?;
            if board.size() == members.len() {
                Ok(parent.child_on(board, AddressSpace::Processes(arenas.part(members))))
            } else {
                Err(Error::protocol(format!(
                    "split: the board of the child has {} ranks, expected {}",
                    board.size(),
                    members.len()
                )))
            }
        }
    }
}

fn in_split(error: Error) -> Error {
    processes::during("split", error)
}
