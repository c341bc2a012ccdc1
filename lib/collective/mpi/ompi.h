#include <mpi.h>
#include <stddef.h>

// Handles that C knows as macros, which cgo cannot read.
MPI_Comm shardbook_world(void);
MPI_Request shardbook_no_request(void);
MPI_Datatype shardbook_type(int type);

// shardbook_op is the reduction of a type, both numbered as Go's group.ReduceOp and
// group.Type are. The mean is a sum here: the caller divides.
MPI_Op shardbook_op(int op, int type);

// shardbook_make_ops makes the reductions that MPI does not have. The functions
// here that return an int return an MPI error code, unless they say otherwise.
int shardbook_make_ops(void);

// shardbook_divide makes a mean of a sum over n ranks. Only floats have one.
void shardbook_divide(void *data, size_t n, int type, int ranks);

// shardbook_start is called once, after MPI_Init_thread. It gives a communicator of
// all processes that nothing else uses.
int shardbook_start(MPI_Comm *comm);

// shardbook_prepare makes a communicator return errors, and gives the rank of this
// process in it and its size.
int shardbook_prepare(MPI_Comm comm, int *rank, int *size);

// shardbook_split is MPI_Comm_split. A negative color takes part and gets nothing.
int shardbook_split(MPI_Comm comm, int color, int key, MPI_Comm *part);

// MPI's non-blocking calls that may work in place, which a NULL says here.
int shardbook_reduce(void *in, void *out, int n, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm, MPI_Request *r);
int shardbook_all_reduce(void *in, void *out, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Request *r);
int shardbook_gather(void *in, void *out, int n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *r);
int shardbook_all_gather(void *in, void *out, int n, MPI_Datatype type, MPI_Comm comm, MPI_Request *r);
int shardbook_scatter(void *in, void *out, int n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *r);

// shardbook_all_done is 1 when all requests are done, 0 when not, and an MPI error
// code made negative when one failed.
int shardbook_all_done(int n, MPI_Request *requests);

// shardbook_some_done is how many requests are newly done, with their places in
// which, or an MPI error code made negative. When none is, it has let MPI take in
// what has come, and asked again.
int shardbook_some_done(int n, MPI_Request *requests, int *which);

// shardbook_cancel ends a receive that nothing came for.
void shardbook_cancel(MPI_Request *request);
