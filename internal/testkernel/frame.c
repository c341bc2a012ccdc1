// Calls of a kernel as XLA would make them if its structs differed from those of foreign.h.
#include <stdio.h>
#include <string.h>

#include "../../lib/xla/foreign/foreign.h"

void *shardbook_test_affine(foreign_frame *);

// The same as in testkernel.go.
enum { SOUND, SHORT_FRAME, LONG_OPERANDS, LONG_RESULTS, SHORT_ARRAY, NO_ARRAY,
	SHORT_API, NEW_API, SHORT_FRAME_ASKED, ASKED };

static _Thread_local char said[300];

static foreign_error *say(foreign_error_args *args) {
	snprintf(said, sizeof said, "%s", args->message);
	return (foreign_error *)said;
}

static foreign_error *none(foreign_threads_args *args) {
	*args->threads = 1;
	return NULL;
}

const char *shardbook_test_frame(int which) {
	float x[3] = {1, 2, 3}, numbers[2] = {2, 1}, y[3], sums[1];
	int64_t three = 3, two = 2, one = 1;
	foreign_array in[2] = {{sizeof *in, NULL, FOREIGN_F32, x, 1, &three},
		{sizeof *in, NULL, FOREIGN_F32, numbers, 1, &two}};
	foreign_array out[2] = {{sizeof *out, NULL, FOREIGN_F32, y, 1, &three},
		{sizeof *out, NULL, FOREIGN_F32, sums, 1, &one}};
	foreign_array *ins[2] = {in, in + 1}, *outs[2] = {out, out + 1};
	int types[2] = {FOREIGN_BUFFER, FOREIGN_BUFFER};
	foreign_api api = {.struct_size = sizeof api, .error = say, .threads = none};
	foreign_frame f = {sizeof f, NULL, &api, NULL, FOREIGN_EXECUTE,
		{sizeof f.in, NULL, 2, types, ins}, {sizeof f.out, NULL, 2, types, outs}};
	struct { size_t struct_size; foreign_version version; } about = {sizeof about, {sizeof about.version, NULL, 7, 7}};
	foreign_metadata question = {{sizeof question, FOREIGN_METADATA, NULL}, (void *)&about};
	if (which == SHORT_FRAME || which == SHORT_FRAME_ASKED) f.struct_size -= sizeof f.out;
	if (which == LONG_OPERANDS) f.in.struct_size += 8;
	if (which == LONG_RESULTS) f.out.struct_size += 8;
	if (which == SHORT_ARRAY) in[1].struct_size -= 8;
	if (which == NO_ARRAY) types[1]++;
	if (which == SHORT_API) api.struct_size -= 8;
	if (which == NEW_API) api.version.major = 1;
	if (which >= SHORT_API) f.extension = &question.base;
	said[0] = 0;
	shardbook_test_affine(&f);
	if (which >= SHORT_API) snprintf(said, sizeof said, "%d", about.version.major);
	else if (!said[0]) snprintf(said, sizeof said, "%g %g %g, %g", y[0], y[1], y[2], sums[0]);
	return said;
}
