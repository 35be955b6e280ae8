//! Sharding of training state among ranks.

mod divider;
mod division;
mod layout;
mod weights;

pub(crate) use divider::Divider;
pub(crate) use division::{Division, StateTensor};
use layout::{FlatLayout, FlatMember, layouts};
pub(crate) use weights::TrainedWeights;
