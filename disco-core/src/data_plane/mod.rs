//! The data plane: worker functions `disco.…`, and the methods of sessions that call them.

mod functions;
mod methods;
mod table;

pub use methods::Placement;
pub use table::is_data_plane_function;
