//! The trainer's program.

use tikv_jemallocator::Jemalloc;

// Also for libtorch: jemalloc replaces the C library's functions in the whole process. With
// glibc's, the activations of a step use a fifth more memory than they hold.
#[global_allocator]
static GLOBAL: Jemalloc = Jemalloc;

fn main() -> ! {
    vit_trainer::main()
}
