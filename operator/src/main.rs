//! The operator's command line.

use clap::Parser as _;
use tikv_jemallocator::Jemalloc;
use vit_operator::{Arguments, Command, run, smoke_test, start_logging};

#[global_allocator]
static GLOBAL: Jemalloc = Jemalloc;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Arguments { command } = Arguments::parse();
    match command {
        Command::Run(arguments) => {
            start_logging(&arguments.log_filter)?;
            Ok(run(arguments).await?)
        }
        Command::SmokeTest(arguments) => Ok(smoke_test(arguments, &mut std::io::stdout()).await?),
    }
}
