// GELU of x + bias and its gradient, each in one pass over the matrices, for float32 and bfloat16. A thread has 16 bytes of
// columns, whose biases it reads once, and some of the rows; a warp has 512 bytes of a row. Everything is computed in
// float32 and rounded once.

enum { across = 32, down = 8 }; // threads of a block: along columns, along rows

// pack is what a thread reads and writes at a time.
template <class T> struct alignas(16) pack {
	enum { width = 16 / sizeof(T) };
	T v[width];
};

// aligned reports whether every row has whole packs at addresses that are multiples of 16.
template <class T> __device__ bool aligned(int64_t columns, const T *x, const T *y, const T *z) {
	return columns % pack<T>::width == 0 && (((uint64_t)x | (uint64_t)y | (uint64_t)z) & 15) == 0;
}

// load reads a pack of n numbers or more, of which the rest become 0.
template <class T> __device__ pack<T> load(const T *from, int64_t n, bool aligned) {
	pack<T> p;
	if (aligned) {
		*(uint4 *)p.v = *(const uint4 *)from;
		return p;
	}
	for (int i = 0; i < p.width; i++) p.v[i] = i < n ? from[i] : T(0.f);
	return p;
}

template <class T> __device__ void store(T *to, const pack<T> &p, int64_t n, bool aligned) {
	if (aligned) {
		__stwb((uint4 *)to, *(const uint4 *)p.v); // *to = p would be as many stores as numbers
		return;
	}
	for (int i = 0; i < p.width; i++)
		if (i < n) to[i] = p.v[i];
}

// share is (1 + tanh z)/2 for z = √(2/π)(u + 0.044715u³).
__device__ float share(float u) { return __fdividef(1.f, 1.f + __expf(-1.5957691216f * u * (1.f + 0.044715f * u * u))); }

// limited is where share and its slope have their limits, 0 and 1, in place of larger numbers, whose cubes are infinite.
__device__ float limited(float u) { return u > 16.f ? 16.f : u < -16.f ? -16.f : u; }

__device__ float gelu(float u) { return u * share(limited(u)); }

__device__ float slope(float u) {
	u = limited(u);
	float s = share(u);
	return s + u * 1.5957691216f * (1.f + 0.134145f * u * u) * s * (1.f - s);
}

// One block for 32 packs of columns, and a slice of the rows.
template <class T> __global__ void bias_gelu(slice<T> y, slice_f32, slice<T> x, slice<T> bias) {
	constexpr int width = pack<T>::width;
	int64_t columns = bias.n, rows = x.n / columns, column = (blockIdx.x * (int64_t)across + threadIdx.x) * width;
	int64_t n = columns - column;
	if (n <= 0) return;
	bool fast = aligned(columns, y.at, x.at, bias.at);
	pack<T> b = load(bias.at + column, n, fast);
	for (int64_t row = blockIdx.y * down + threadIdx.y; row < rows; row += gridDim.y * down) {
		pack<T> p = load(x.at + row * columns + column, n, fast);
#pragma unroll
		for (int i = 0; i < width; i++) p.v[i] = T(gelu(float(p.v[i]) + float(b.v[i])));
		store(y.at + row * columns + column, p, n, fast);
	}
}

// The same, with the sum of the bias's gradient over the slice's rows, always in the same order; adding the slices is left to
// the caller.
template <class T>
__global__ void bias_gelu_gradient(slice<T> dx, slice_f32 dbias, slice<T> x, slice<T> bias, slice<T> dy) {
	constexpr int width = pack<T>::width;
	__shared__ float sums[down][width][across];
	int64_t columns = bias.n, rows = x.n / columns, column = (blockIdx.x * (int64_t)across + threadIdx.x) * width;
	int64_t n = columns - column;
	float sum[width] = {};
	if (n > 0) {
		bool fast = aligned(columns, x.at, dx.at, dy.at) && aligned(columns, bias.at, x.at, x.at);
		pack<T> b = load(bias.at + column, n, fast);
		for (int64_t row = blockIdx.y * down + threadIdx.y; row < rows; row += gridDim.y * down) {
			int64_t at = row * columns + column;
			pack<T> p = load(x.at + at, n, fast), g = load(dy.at + at, n, fast);
#pragma unroll
			for (int i = 0; i < width; i++) {
				float d = float(g.v[i]) * slope(float(p.v[i]) + float(b.v[i]));
				sum[i] += d;
				p.v[i] = T(d);
			}
			store(dx.at + at, p, n, fast);
		}
	}
#pragma unroll
	for (int i = 0; i < width; i++) sums[threadIdx.y][i][threadIdx.x] = sum[i];
	__syncthreads();
	if (threadIdx.y > 0) return;
	for (int i = 0; i < width && i < n; i++) {
		float total = 0;
		for (int y = 0; y < down; y++) total += sums[y][i][threadIdx.x];
		dbias.at[blockIdx.y * columns + column + i] = total;
	}
}
