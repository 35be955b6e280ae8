// CUDA source of the LayerNorm kernels. layer_norm.cpp compiles it for one GPU and one row length:
// a warp keeps a whole row in registers, and each loop over it is unrolled.
//
// A warp reads each of its rows once; statistics and sums are in 32 bits. The backward pass sums
// the gradients of weight and bias in registers, then over a block in shared memory;
// `vit_layer_norm_reduce` sums the blocks. Sums have a fixed order, so results are reproducible.
#pragma once

namespace vit {

inline constexpr char kLayerNormKernels[] = R"cuda(
// Compiler options: COLUMNS of a row; WARPS of a block; PACK, elements per read of a lane; FORMAT,
// 32 for float, 16 for IEEE half precision, 0 for bfloat16.
constexpr unsigned kAll = 0xffffffffu;
constexpr int kLanes = 32, kPacks = COLUMNS / (kLanes * PACK), kOwn = kPacks * PACK;

#if FORMAT == 32
using Element = float;
__device__ float widen(Element value) { return value; }
__device__ Element narrow(float value) { return value; }
#elif FORMAT == 16
using Element = unsigned short;
__device__ float widen(Element value) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value));
  return wide;
}
__device__ Element narrow(float value) {
  Element half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}
#else
using Element = unsigned short;
__device__ float widen(Element value) { return __uint_as_float(static_cast<unsigned>(value) << 16); }
// Rounds to nearest, ties to even.
__device__ Element narrow(float value) {
  const unsigned bits = __float_as_uint(value);
  return value != value ? 0x7fff : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
#endif

struct alignas(PACK * sizeof(Element)) Pack {
  Element elements[PACK];
};

// Each lane has every 32nd pack of a row.
__device__ void read(const Element* row, int lane, float (&own)[kOwn]) {
#pragma unroll
  for (int pack = 0; pack < kPacks; ++pack) {
    const Pack packed = reinterpret_cast<const Pack*>(row)[pack * kLanes + lane];
#pragma unroll
    for (int element = 0; element < PACK; ++element) {
      own[pack * PACK + element] = widen(packed.elements[element]);
    }
  }
}

__device__ void write(Element* row, int lane, const float (&own)[kOwn]) {
#pragma unroll
  for (int pack = 0; pack < kPacks; ++pack) {
    Pack packed;
#pragma unroll
    for (int element = 0; element < PACK; ++element) {
      packed.elements[element] = narrow(own[pack * PACK + element]);
    }
    reinterpret_cast<Pack*>(row)[pack * kLanes + lane] = packed;
  }
}

__device__ float sum_of_warp(float value) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAll, value, distance);
  }
  return value;
}

extern "C" __global__ void __launch_bounds__(kLanes * WARPS)
vit_layer_norm_forward(const Element* input, const Element* weight, const Element* bias, float epsilon, long long rows,
                       Element* output, float* means, float* inverse_deviations) {
  const int lane = threadIdx.x % kLanes;
  const long long warps = static_cast<long long>(gridDim.x) * WARPS;
  for (long long row = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / kLanes; row < rows; row += warps) {
    float own[kOwn];
    read(input + row * COLUMNS, lane, own);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      sum += own[i];
    }
    const float mean = sum_of_warp(sum) / COLUMNS;
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      squares += (own[i] - mean) * (own[i] - mean);
    }
    const float inverse = rsqrtf(sum_of_warp(squares) / COLUMNS + epsilon);
    float scale[kOwn], shift[kOwn];
    read(weight, lane, scale);
    read(bias, lane, shift);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      own[i] = (own[i] - mean) * inverse * scale[i] + shift[i];
    }
    write(output + row * COLUMNS, lane, own);
    if (lane == 0) {
      means[row] = mean;
      inverse_deviations[row] = inverse;
    }
  }
}

// Sums each column over the warps of a block and writes the sums as one row.
__device__ void sum_of_block(float (*shared)[COLUMNS], int lane, int warp, const float (&own)[kOwn], float* row) {
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    shared[warp][(i / PACK * kLanes + lane) * PACK + i % PACK] = own[i];
  }
  __syncthreads();
  for (int column = threadIdx.x; column < COLUMNS; column += kLanes * WARPS) {
    float sum = 0;
#pragma unroll
    for (int other = 0; other < WARPS; ++other) {
      sum += shared[other][column];
    }
    row[column] = sum;
  }
  __syncthreads();
}

// `partial` has two rows per block: gradients of the weight and of the bias.
extern "C" __global__ void __launch_bounds__(kLanes * WARPS)
vit_layer_norm_backward(const Element* gradients, const Element* input, const Element* weight, const float* means,
                        const float* inverse_deviations, long long rows, Element* input_gradients, float* partial) {
  __shared__ float shared[WARPS][COLUMNS];
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  float of_weight[kOwn] = {}, of_bias[kOwn] = {};
  const long long warps = static_cast<long long>(gridDim.x) * WARPS;
  for (long long row = static_cast<long long>(blockIdx.x) * WARPS + warp; row < rows; row += warps) {
    float normal[kOwn], gradient[kOwn];
    read(input + row * COLUMNS, lane, normal);
    read(gradients + row * COLUMNS, lane, gradient);
    const float mean = means[row], inverse = inverse_deviations[row];
    float scale[kOwn];
    read(weight, lane, scale);
    float sum = 0, product = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      normal[i] = (normal[i] - mean) * inverse;
      of_weight[i] += gradient[i] * normal[i];
      of_bias[i] += gradient[i];
      gradient[i] *= scale[i];
      sum += gradient[i];
      product += gradient[i] * normal[i];
    }
    sum = sum_of_warp(sum) / COLUMNS;
    product = sum_of_warp(product) / COLUMNS;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      gradient[i] = (gradient[i] - sum - normal[i] * product) * inverse;
    }
    write(input_gradients + row * COLUMNS, lane, gradient);
  }
  float* rows_of_block = partial + static_cast<long long>(blockIdx.x) * 2 * COLUMNS;
  sum_of_block(shared, lane, warp, of_weight, rows_of_block);
  sum_of_block(shared, lane, warp, of_bias, rows_of_block + COLUMNS);
}

// Each block sums 32 of the 2 x COLUMNS columns of `partial`, with 8 threads per column.
extern "C" __global__ void __launch_bounds__(kLanes * 8)
vit_layer_norm_reduce(const float* partial, int blocks, Element* weight_gradient, Element* bias_gradient) {
  __shared__ float shared[8][kLanes];
  const int lane = threadIdx.x % kLanes, part = threadIdx.x / kLanes;
  const int column = blockIdx.x * kLanes + lane;
  float sum = 0;
  for (int block = part; block < blocks; block += 8) {
    sum += partial[static_cast<long long>(block) * 2 * COLUMNS + column];
  }
  shared[part][lane] = sum;
  __syncthreads();
  if (part == 0) {
    for (int other = 1; other < 8; ++other) {
      sum += shared[other][lane];
    }
    if (column < COLUMNS) {
      weight_gradient[column] = narrow(sum);
    } else {
      bias_gradient[column - COLUMNS] = narrow(sum);
    }
  }
}
)cuda";

}  // namespace vit
