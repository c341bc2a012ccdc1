// The loop of column sums. matmul.c compiles this file once for each instruction set.

// column_sums sums a stripe of columns, each SUMMED rows by themselves, so that rounding errors do not grow with the rows.
static void NAME(column_sums)(void *of, int64_t part, void *scratch) {
	enum { SUMMED = 64 };
	const column_sums *w = of;
	(void)scratch;
	int64_t j = part * STRIPE, columns = w->columns - j < STRIPE ? w->columns - j : STRIPE;
	float total[STRIPE] = {};
	for (int64_t i = 0; i < w->rows; i += SUMMED) {
		float sum[STRIPE] = {};
		int64_t end = i + SUMMED < w->rows ? i + SUMMED : w->rows;
		for (int64_t r = i; r < end; r++) {
			const float *x = w->x + r * w->columns + j;
			if (columns == STRIPE)
				for (int64_t q = 0; q < STRIPE; q++) sum[q] += x[q];
			else
				for (int64_t q = 0; q < columns; q++) sum[q] += x[q];
		}
		for (int64_t q = 0; q < STRIPE; q++) total[q] += sum[q];
	}
	memcpy(w->sums + j, total, sizeof *total * columns);
}
