//go:build mpi

#include "ompi.h"

MPI_Comm shardbook_world(void) { return MPI_COMM_WORLD; }

MPI_Request shardbook_no_request(void) { return MPI_REQUEST_NULL; }

// The types in the order of Go's group.Type. 16-bit floats are sent as their bits.
MPI_Datatype shardbook_type(int type) {
	MPI_Datatype types[] = {MPI_FLOAT, MPI_DOUBLE, MPI_UINT16_T, MPI_UINT16_T, MPI_INT32_T, MPI_INT64_T, MPI_UINT8_T};
	return types[type];
}

int shardbook_start(MPI_Comm *comm) {
	int code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	if (code == MPI_SUCCESS) code = shardbook_make_ops();
	if (code == MPI_SUCCESS) code = MPI_Comm_dup(MPI_COMM_WORLD, comm);
	return code;
}

int shardbook_prepare(MPI_Comm comm, int *rank, int *size) {
	int code = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
	if (code == MPI_SUCCESS) code = MPI_Comm_rank(comm, rank);
	if (code == MPI_SUCCESS) code = MPI_Comm_size(comm, size);
	return code;
}

int shardbook_split(MPI_Comm comm, int color, int key, MPI_Comm *part) {
	return MPI_Comm_split(comm, color < 0 ? MPI_UNDEFINED : color, key, part);
}

static void *or_in_place(void *p) { return p == NULL ? MPI_IN_PLACE : p; }

int shardbook_reduce(void *in, void *out, int n, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm, MPI_Request *r) {
	return MPI_Ireduce(or_in_place(in), out, n, type, op, root, comm, r);
}

int shardbook_all_reduce(void *in, void *out, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Request *r) {
	return MPI_Iallreduce(or_in_place(in), out, n, type, op, comm, r);
}

int shardbook_gather(void *in, void *out, int n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *r) {
	return MPI_Igather(or_in_place(in), n, type, out, n, type, root, comm, r);
}

int shardbook_all_gather(void *in, void *out, int n, MPI_Datatype type, MPI_Comm comm, MPI_Request *r) {
	return MPI_Iallgather(or_in_place(in), n, type, out, n, type, comm, r);
}

int shardbook_scatter(void *in, void *out, int n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *r) {
	return MPI_Iscatter(in, n, type, or_in_place(out), n, type, root, comm, r);
}

int shardbook_all_done(int n, MPI_Request *requests) {
	int done = 0;
	int code = MPI_Testall(n, requests, &done, MPI_STATUSES_IGNORE);
	return code == MPI_SUCCESS ? done : -code;
}

int shardbook_some_done(int n, MPI_Request *requests, int *which) {
	int count = 0;
	int code = MPI_Testsome(n, requests, &count, which, MPI_STATUSES_IGNORE);
	if (code == MPI_SUCCESS && count == 0) code = MPI_Testsome(n, requests, &count, which, MPI_STATUSES_IGNORE);
	if (code != MPI_SUCCESS) return -code;
	return count == MPI_UNDEFINED ? 0 : count;
}

void shardbook_cancel(MPI_Request *request) {
	if (*request == MPI_REQUEST_NULL) return;
	MPI_Cancel(request);
	MPI_Wait(request, MPI_STATUS_IGNORE);
}
