//! The outcomes of a command for several objects.

use crate::error::{Error, Exit};
use crate::output::report;

/// The worst outcome so far.
#[derive(Debug)]
pub(crate) struct Outcomes(Exit);

impl Outcomes {
    pub(crate) fn new() -> Self {
        Self(Exit::Done)
    }

    /// Returns the value, or reports its error. Fails only with errors that all objects would get.
    pub(crate) fn keep<T>(&mut self, outcome: Result<T, Error>) -> Result<Option<T>, Error> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.concerns_all() => Err(error),
            Err(error) => {
                report(&format!("error: {error}"));
                self.0 = self.0.worse(error.exit());
                Ok(None)
            }
        }
    }

    pub(crate) fn exit(&self) -> Exit {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_one_object_does_not_stop_the_others() {
        let mut outcomes = Outcomes::new();
        let missing = || Error::NotFound("no job a".into());
        assert!(matches!(outcomes.keep(Ok(1)), Ok(Some(1))));
        assert!(matches!(outcomes.keep::<()>(Err(missing())), Ok(None)));
        assert!(matches!(
            outcomes.keep::<()>(Err(Error::Failed("b".into()))),
            Ok(None)
        ));
        assert_eq!(outcomes.exit(), Exit::NotFound);
        let server = "http://test".into();
        let outcome = outcomes.keep::<()>(Err(Error::NoResource { server }));
        assert!(outcome.is_err(), "no other call would succeed");
    }
}
