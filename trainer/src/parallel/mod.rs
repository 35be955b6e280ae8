//! How training state is divided among ranks.

mod division;
mod layout;
mod weights;

pub(crate) use division::{Division, StateTensor};
use layout::{FlatLayout, Member, layouts};
pub(crate) use weights::TrainedWeights;
