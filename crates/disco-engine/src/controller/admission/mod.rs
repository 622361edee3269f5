//! Admission: a connection belongs to no peer until it has proved which one. Time and number of such connections are
//! limited.

mod applicant;
mod checks;
mod growth;
mod nodes;
mod pending;
mod processes;
mod refused;
mod standby;
mod terms;

pub(crate) use applicant::Applicant;
pub(crate) use growth::{Grown, Redirected};
pub(crate) use nodes::Nodes;
pub use pending::MAX_PENDING;
pub(crate) use processes::{Processes, Verdict};
pub use standby::{Missing, Vacancy};
pub use terms::{NodeTerms, Tree};
