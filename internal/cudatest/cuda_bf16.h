// CUDA's bfloat16 for a processor: what kernels use of it, with its names.
#pragma once

struct __nv_bfloat16 {
	unsigned short bits;
	__nv_bfloat16() = default;
	__nv_bfloat16(float x) { // to the nearest, ties to even
		unsigned u;
		memcpy(&u, &x, sizeof u);
		bits = (unsigned short)(x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16);
	}
	operator float() const {
		unsigned u = (unsigned)bits << 16;
		float x;
		memcpy(&x, &u, sizeof x);
		return x;
	}
};
