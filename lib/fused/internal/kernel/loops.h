// The loops over rows, in vectors of LANES floats. kernel.c compiles this file once for each instruction set. Each
// function computes one part of a call's rows; operands and results are numbered as in the table of kernel.c.
#include "../../../../internal/vector/vector.h"

// take reads the vector at p, of which n floats are left of the row; lanes beyond it are fill.
inlined vec NAME(take)(const float *p, int64_t n, float fill) {
	if (n >= LANES) return VEC(p);
	vec x = ALL(fill);
	memcpy(&x, p, n * sizeof *p);
	return x;
}

// give writes the lanes of a vector that the row has.
inlined void NAME(give)(float *p, int64_t n, vec x) {
	if (n >= LANES) VEC(p) = x;
	else memcpy(p, &x, n * sizeof *p);
}

inlined float NAME(total)(vec x) {
	float sum = 0;
	for (int i = 0; i < LANES; i++) sum += x[i];
	return sum;
}

// sigmoid returns 1/(1+e⁻ˣ), and its derivative.
inlined vec NAME(sigmoid)(vec x, vec *slope) {
	ivec negative = x < 0.0f;
	vec e = NAME(exp)(NAME(pick)(negative, x, -x)), share = 1.0f / (1.0f + e);
	*slope = e * share * share;
	return NAME(pick)(negative, e * share, share);
}

// gelu returns GELU(x) = x·sigmoid(2z) with z = √(2/π)·(x + 0.044715x³), since 1 + tanh z = 2·sigmoid(2z), and its
// derivative. Beyond ±12, where the sigmoid is 0 or 1, a smaller x keeps x³ finite.
inlined vec NAME(gelu)(vec x, vec *slope) {
	const float two_root = 1.59576912f, cubic = 0.0713548163f; // 2√(2/π), and times 0.044715
	vec near = NAME(pick)(x > 12.0f, ALL(12.0f), NAME(pick)(x < -12.0f, ALL(-12.0f), x)), square = near * near, steep;
	vec s = NAME(sigmoid)(near * (square * cubic + two_root), &steep);
	*slope = near * (square * (3 * cubic) + two_root) * steep + s;
	return x * s;
}

static void NAME(gelu_rows)(void *of, int64_t part, void *scratch) {
	const call *c = of;
	const int64_t n = c->columns, end = last_row(c, part);
	const float *bias = c->in[1];
	(void)scratch;
	for (int64_t row = part * c->each; row < end; row++) {
		const float *x = (float *)c->in[0] + row * n;
		float *y = (float *)c->out[0] + row * n;
		for (int64_t j = 0; j < n; j += LANES) {
			vec slope;
			NAME(give)(y + j, n - j, NAME(gelu)(NAME(take)(x + j, n - j, 0) + NAME(take)(bias + j, n - j, 0), &slope));
		}
	}
}

static void NAME(gelu_gradient)(void *of, int64_t part, void *scratch) {
	const call *c = of;
	const int64_t n = c->columns, end = last_row(c, part);
	const float *bias = c->in[1];
	float *biases = c->sums + part * n;
	(void)scratch;
	for (int64_t row = part * c->each; row < end; row++) {
		const float *x = (float *)c->in[0] + row * n, *dy = (float *)c->in[2] + row * n;
		float *dx = (float *)c->out[0] + row * n;
		for (int64_t j = 0; j < n; j += LANES) {
			vec slope;
			NAME(gelu)(NAME(take)(x + j, n - j, 0) + NAME(take)(bias + j, n - j, 0), &slope);
			slope *= NAME(take)(dy + j, n - j, 0);
			NAME(give)(dx + j, n - j, slope);
			NAME(give)(biases + j, n - j, NAME(take)(biases + j, n - j, 0) + slope);
		}
	}
}

// cross_entropy saves the largest logit and the sum of e^(logit−largest) of each row, not their log-sum-exp, whose rounding
// would be most of the error for large logits.
static void NAME(cross_entropy)(void *of, int64_t part, void *scratch) {
	enum { SUMMED = 4096 }; // floats that are summed in float
	const call *c = of;
	const int64_t n = c->columns, end = last_row(c, part);
	(void)scratch;
	for (int64_t row = part * c->each; row < end; row++) {
		const float *x = (float *)c->in[0] + row * n;
		vec most = ALL(-INFINITY);
		for (int64_t j = 0; j < n; j += LANES) {
			vec v = NAME(take)(x + j, n - j, -INFINITY);
			most = NAME(pick)(v > most, v, most);
		}
		float largest = most[0];
		for (int i = 1; i < LANES; i++) largest = most[i] > largest ? most[i] : largest;
		double sum = 0;
		for (int64_t begin = 0; begin < n; begin += SUMMED) {
			vec some = {};
			for (int64_t j = begin; j < n && j < begin + SUMMED; j += LANES)
				some += NAME(exp)(NAME(take)(x + j, n - j, -INFINITY) - largest);
			sum += NAME(total)(some);
		}
		int32_t target = ((int32_t *)c->in[1])[row];
		((float *)c->out[0])[row] = target >= 0 && target < n ? log(sum) - (x[target] - largest) : 0;
		((float *)c->out[1])[row] = largest;
		((float *)c->out[2])[row] = sum;
	}
}

static void NAME(cross_entropy_gradient)(void *of, int64_t part, void *scratch) {
	const call *c = of;
	const int64_t n = c->columns, end = last_row(c, part);
	(void)scratch;
	for (int64_t row = part * c->each; row < end; row++) {
		const float *x = (float *)c->in[0] + row * n, largest = ((float *)c->in[2])[row];
		float *dx = (float *)c->out[0] + row * n, g = ((float *)c->in[4])[row], share = g / ((float *)c->in[3])[row];
		int32_t target = ((int32_t *)c->in[1])[row];
		if (target < 0 || target >= n) {
			memset(dx, 0, n * sizeof *dx);
			continue;
		}
		for (int64_t j = 0; j < n; j += LANES)
			NAME(give)(dx + j, n - j, NAME(exp)(NAME(take)(x + j, n - j, 0) - largest) * share);
		dx[target] -= g;
	}
}
