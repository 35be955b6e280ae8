//! Asynchronous work of a GPU, if there is one; otherwise the same on the CPU, synchronously.
#![allow(missing_docs, reason = "tests say what they show by their names")]

use std::time::Instant;

use tch::{Device, Kind, Tensor};
use torch_ext::{CudaError, DeviceEvent, Transfer, load_cuda};

#[expect(clippy::print_stdout, reason = "`make gpu-check` reads which device it was")]
fn device() -> Device {
    let device = match load_cuda() {
        Ok(cuda) => {
            cuda.replace_layer_norm().expect("NVRTC is installed");
            Device::Cuda(0)
        }
        Err(CudaError::NoDevice) => Device::Cpu,
        Err(error) => panic!("{error}"),
    };
    println!("device: {}", if device.is_cuda() { "cuda" } else { "cpu" });
    device
}

fn wait_for(device: Device) {
    if let Device::Cuda(index) = device {
        tch::Cuda::synchronize(index as i64);
    }
}

/// Consecutive matrix products that take any device some tenths of a second.
fn work(device: Device) -> impl Fn() -> Tensor {
    let (size, products) = if device.is_cuda() { (8192, 32) } else { (1024, 8) };
    let matrix = Tensor::ones([size, size], (Kind::Float, device)) / size as f64;
    move || (0..products).fold(matrix.shallow_clone(), |product, _| product.matmul(&matrix))
}

#[test]
fn work_takes_as_long_as_the_device_is_at_it() {
    let device = device();
    let work = work(device);
    drop(work());
    wait_for(device);
    let before = Instant::now();
    let start = DeviceEvent::now(device).expect("an event");
    drop(work());
    let end = DeviceEvent::now(device).expect("an event");
    let launched = before.elapsed().as_secs_f64();
    wait_for(device);
    let took = before.elapsed().as_secs_f64();
    let seconds = end.seconds_since(&start).expect("both have passed");
    assert!((seconds - took).abs() < took / 4.0, "{seconds} s of {took} s");
    if device.is_cuda() {
        assert!(launched < took / 4.0, "the host needed {launched} s of {took} s");
    }
}

#[test]
fn bytes_sent_while_the_device_is_busy_reach_the_operations_that_wait_for_them() {
    const BYTES: usize = 1 << 20;
    let device = device();
    let work = work(device);
    let mut transfer = Transfer::new(device, BYTES).expect("memory");
    let mut sums = Vec::new();
    for value in 1..=3_u8 {
        // Overwritten after each copy, while its sum may still be queued behind this work.
        transfer.host().expect("memory").fill(value);
        drop(work());
        transfer.send(BYTES).expect("sends");
        let sum = transfer.receive(|bytes| bytes.sum(Kind::Int64));
        sums.push(sum.expect("receives"));
    }
    let sums: Vec<i64> = sums.iter().map(|sum| sum.int64_value(&[])).collect();
    assert_eq!(sums, [1, 2, 3].map(|value| value << 20));
}

/// Relative distance of two tensors.
fn distance(found: &Tensor, expected: &Tensor) -> f64 {
    let found = found.to_device(Device::Cpu).to_kind(Kind::Double);
    ((found - expected).norm() / expected.norm()).double_value(&[])
}

/// The output of LayerNorm, and the gradients of input, weight and bias.
fn layer_norm(tensors: &[Tensor; 4], kind: Kind, device: Device) -> [Tensor; 4] {
    let [input, weight, bias, gradient] = tensors
        .each_ref()
        .map(|tensor| tensor.to_device(device).to_kind(kind).copy());
    let [input, weight, bias] = [input, weight, bias].map(|tensor| tensor.set_requires_grad(true));
    let columns = weight.size()[0];
    let output = input.layer_norm([columns], Some(&weight), Some(&bias), 1e-6, false);
    (&output * gradient).sum(output.kind()).backward();
    [output.detach(), input.grad(), weight.grad(), bias.grad()]
}

#[test]
fn layer_norm_rounds_no_more_than_its_number_format() {
    let device = device();
    tch::manual_seed(20260);
    // libtorch's CPU kernels sum gradients of weights in half precision.
    let formats: &[_] = if device.is_cuda() {
        &[(Kind::Float, 2e-6), (Kind::Half, 1e-3), (Kind::BFloat16, 8e-3)]
    } else {
        &[(Kind::Float, 2e-6)]
    };
    // Rows of one to sixteen packs per lane; the last ones are left to libtorch.
    for (rows, columns) in [
        (1, 64),
        (7, 192),
        (2000, 384),
        (197, 768),
        (20_011, 768),
        (33, 1024),
        (515, 1280),
        (64, 1408),
        (130, 1536),
        (50, 100),
        (50, 2048),
    ] {
        for &(kind, most) in formats {
            let rounded = |tensor: Tensor| tensor.to_kind(kind).to_kind(Kind::Double);
            let random = |shape: &[i64]| rounded(Tensor::randn(shape, (Kind::Double, Device::Cpu)));
            let tensors = [
                rounded(random(&[rows, columns]) * 3.0 + 2.0),
                random(&[columns]),
                random(&[columns]),
                random(&[rows, columns]),
            ];
            let expected = layer_norm(&tensors, Kind::Double, Device::Cpu);
            let found = layer_norm(&tensors, kind, device);
            for ((found, expected), what) in found
                .iter()
                .zip(&expected)
                .zip(["output", "input", "weight", "bias"])
            {
                let distance = distance(found, expected);
                assert!(
                    distance < most,
                    "{what} of {rows} rows of {columns} in {kind:?}: {distance}"
                );
            }
        }
    }
}
