//go:build !resident

// Matmuls of rows in groups, each with a matrix of its own, on a CPU. Called from XLA's programs. The matmuls are those
// of internal/vector; this file has the operands of a call, and its division into parts for XLA's threads.
#include "../../../../internal/vector/matmul.h"

#define LOOPS "tile.h"
#include "../../../../internal/vector/each.h"

void shardbook_grouped_limit(int bits) { most_bits = bits; }
int shardbook_grouped_bits(void) { return vector_bits(); }

// group is one group's matmul, or memory to fill with zeros.
typedef struct {
	matmul w;
	char *zeros;
	int64_t bytes; // 0 for a matmul
	int64_t first; // the first of the call's parts that are the group's
} group;

typedef struct {
	group *all;
	int64_t groups, parts, rows; // rows is the most of a part
	void (*matmul)(void *, int64_t, void *);
} call;

enum { ZEROS = 1 << 16 }; // bytes of a part

static void run_part(void *of, int64_t part, void *scratch) {
	const call *c = of;
	const group *g = c->all;
	while (g + 1 < c->all + c->groups && g[1].first <= part) g++;
	part -= g->first;
	if (g->bytes) memset(g->zeros + part * ZEROS, 0, lesser(ZEROS, g->bytes - part * ZEROS));
	else c->matmul((void *)&g->w, part, scratch);
}

static void add_zeros(call *c, void *at, int64_t bytes) {
	if (!bytes) return;
	c->all[c->groups++] = (group){.zeros = at, .bytes = bytes, .first = c->parts};
	c->parts += over(bytes, ZEROS);
}

// add_matmul cuts a matmul into its share of the parts that pay for all together, which have so many multiplications.
static void add_matmul(call *c, matmul w, double all, int64_t threads) {
	double own = (double)w.m * w.n * w.k;
	int64_t share = lesser(parts_for(own, threads), ceil(parts_for(all, threads) * own / all));
	group *g = &c->all[c->groups++];
	*g = (group){.w = w, .first = c->parts};
	c->parts += divide(&g->w, share, BEST(tile_of)());
	if (g->w.rows > c->rows) c->rows = g->w.rows;
}

enum { ROWS_BY_MATRICES, ROWS_BY_TURNED, ROWS_BY_ROWS };

// run reads and checks a call. ROWS_BY_MATRICES is x (rows,k) times w (groups,k,n), ROWS_BY_TURNED with w (groups,n,k),
// both with results (rows,n), with zeros after the last group. ROWS_BY_ROWS is xᵀ (k,rows) times y (rows,n) for each
// group: (groups,k,n). A second result of no elements is there since GoMLX drops a call with one.
static foreign_error *run(foreign_frame *f, int form) {
	enum { SIZES = FOREIGN_ANY };
	foreign_error *wrong = foreign_count(f, "grouped matmul", 3, 2);
	if (wrong) return wrong;
	foreign_array *x = foreign_in(f, 0), *y = foreign_in(f, 1), *counts = foreign_in(f, 2), *out = foreign_out(f, 0);
	const int T = x->type, by_rows = form == ROWS_BY_ROWS, turned = form == ROWS_BY_TURNED;
	if (T != FOREIGN_F32 && T != FOREIGN_F16 && T != FOREIGN_BF16)
		return foreign_fail(f, "grouped matmul: arrays must be float32, float16 or bfloat16");
	if ((wrong = foreign_expect(f, "grouped matmul: the first operand", x, T, 2, (int64_t[]){SIZES, SIZES})) ||
			(wrong = foreign_expect(f, "grouped matmul: counts", counts, FOREIGN_S32, 1, (int64_t[]){SIZES})))
		return wrong;
	int64_t rows = x->dims[0], k = x->dims[1], groups = counts->dims[0];
	int64_t two[] = {rows, SIZES}, three[] = {groups, turned ? SIZES : k, turned ? k : SIZES};
	wrong = foreign_expect(f, "grouped matmul: the second operand", y, T, by_rows ? 2 : 3, by_rows ? two : three);
	if (wrong) return wrong;
	int64_t n = y->dims[by_rows || turned ? 1 : 2], size = T == FOREIGN_F32 ? sizeof(float) : sizeof(uint16_t);
	two[1] = n, three[1] = k, three[2] = n;
	wrong = foreign_expect(f, "grouped matmul: the result", out, T, by_rows ? 3 : 2, by_rows ? three : two);
	if (wrong || (wrong = foreign_expect(f, "grouped matmul: the second result", foreign_out(f, 1), FOREIGN_F32, 1, (int64_t[]){0})))
		return wrong;
	if (!rows || !k || !n || !groups) return foreign_fail(f, "grouped matmul: operands must not be empty");

	int64_t total = 0, threads = foreign_threads(f);
	const int32_t *count = counts->data;
	for (int64_t i = 0; i < groups; i++) {
		total += count[i];
		if (count[i] < 0 || total > rows) {
			char message[200];
			snprintf(message, sizeof message, "grouped matmul: group %lld has %d rows, and %lld are left of %lld", (long long)i,
				count[i], (long long)(rows - total + count[i]), (long long)rows);
			return foreign_fail(f, message);
		}
	}
	call c = {.matmul = BEST(matmul), .all = calloc(groups + 1, sizeof *c.all)};
	if (!c.all) return foreign_fail(f, "out of memory");
	for (int64_t i = 0, first = 0; i < groups; first += count[i++]) {
		char *from = (char *)x->data + first * k * size, *matrix = (char *)(by_rows ? out : y)->data + i * k * n * size;
		char *other = (char *)(by_rows ? y : out)->data + first * n * size;
		if (!count[i]) {
			if (by_rows) add_zeros(&c, matrix, k * n * size);
			continue;
		}
		matmul w = {.m = count[i], .n = n, .k = k, .a = {from, T}, .b = {matrix, T}, .c = {other, T}, .b_turned = turned};
		if (by_rows)
			w = (matmul){.m = k, .n = n, .k = count[i], .a = {from, T}, .b = {other, T}, .c = {matrix, T}, .a_turned = 1};
		add_matmul(&c, w, (double)total * n * k, threads);
	}
	if (!by_rows) add_zeros(&c, (char *)out->data + total * n * size, (rows - total) * n * size);
	wrong = foreign_for(f, c.parts, scratch_for(c.rows, T), run_part, &c);
	free(c.all);
	return wrong;
}

static foreign_error *by_matrices(foreign_frame *f) { return run(f, ROWS_BY_MATRICES); }
static foreign_error *by_turned(foreign_frame *f) { return run(f, ROWS_BY_TURNED); }
static foreign_error *by_rows(foreign_frame *f) { return run(f, ROWS_BY_ROWS); }

void *shardbook_grouped_by_matrices(foreign_frame *f) { return foreign_handle(f, by_matrices); }
void *shardbook_grouped_by_turned(foreign_frame *f) { return foreign_handle(f, by_turned); }
void *shardbook_grouped_by_rows(foreign_frame *f) { return foreign_handle(f, by_rows); }
