#include <math.h>
#include <stdatomic.h>

#include "../../lib/xla/foreign/foreign.h"

enum { PART = 64 }; // elements

typedef struct {
	const float *x;
	float factor, offset, *y, *sums;
	int64_t n;
	int squares;
} call;

// one_part computes in scratch first, so that a test fails if threads share it.
static void one_part(void *of, int64_t i, void *scratch) {
	call *c = of;
	float *y = scratch, sum = 0;
	int64_t first = i * PART, n = c->n - first < PART ? c->n - first : PART;
	for (int64_t j = 0; j < n; j++) {
		float x = c->x[first + j];
		y[j] = c->factor * (c->squares ? x * x : x) + c->offset;
	}
	for (int64_t j = 0; j < n; j++) sum += c->y[first + j] = y[j];
	c->sums[i] = sum;
}

static atomic_llong count;

long long shardbook_test_calls(void) { return atomic_load(&count); }

static foreign_error *run(foreign_frame *f, int squares) {
	atomic_fetch_add(&count, 1);
	const foreign_array *x = foreign_in(f, 0);
	const float *numbers = foreign_in(f, 1)->data;
	call c = {x->data, numbers[0], numbers[1], foreign_out(f, 0)->data, foreign_out(f, 1)->data, 1, squares};
	for (int64_t i = 0; i < x->rank; i++) c.n *= x->dims[i];
	if (isnan(c.factor)) return foreign_fail(f, "the factor is not a number");
	return foreign_for(f, c.n / PART + 1, PART * sizeof(float), one_part, &c);
}

static foreign_error *affine(foreign_frame *f) { return run(f, 0); }
static foreign_error *parabola(foreign_frame *f) { return run(f, 1); }

void *shardbook_test_affine(foreign_frame *f) { return foreign_handle(f, affine); }
void *shardbook_test_parabola(foreign_frame *f) { return foreign_handle(f, parabola); }
