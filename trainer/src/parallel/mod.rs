//! How training state is divided among ranks.

mod division;
mod layout;
mod weights;

pub(crate) use division::{Division, StateTensor};
use layout::{FlatLayout, FlatMember, layouts};
pub(crate) use weights::TrainedWeights;
