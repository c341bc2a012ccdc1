package train

import (
	"context"
	"errors"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/step"
)

// Trainer trains a model with any parallelism: on one or more devices of this process, or on the ranks of a group. It
// is not safe for use by several goroutines at once.
//
// Every call ends when its context is cancelled. A call that is cancelled in the middle of a step makes the run
// unusable, and so does any error of a step except that of a batch that does not fit: every later call returns that
// error. Continue in a new run from the last checkpoint. Batches are functions of the step's number, so the new run
// skips none and repeats none.
//
// Where each process has one rank of a group, the calls that take a context are collective: all ranks must make them,
// with the same arguments.
type Trainer interface {
	// Step trains on one batch, inputs and targets of shape (B,…), which is split over the data-parallel replicas and
	// into micro-batches. A B that can not be split so is an error, and so is a batch that the model rejects
	// ([Checker]); both leave the run unchanged.
	Step(ctx context.Context, inputs, targets *tensors.Tensor) (Metrics, error)
	// Evaluate returns the mean loss over a batch, without dropout, and changes nothing.
	Evaluate(ctx context.Context, inputs, targets *tensors.Tensor) (float64, error)
	// Steps returns the number of batches trained on, which is also the number of the next one, from 0.
	Steps() int
	// Params returns copies of the full parameters by name, in the type that the precision stores them in: all, or
	// those named, which is cheap for small ones, such as buffers. A rank of a group returns those of its own stage.
	Params(ctx context.Context, names ...string) (params.Named[*tensors.Tensor], error)
	// Save writes the state as the checkpoint of its step into the folder dir, with the caller's metadata, and deletes
	// all but the newest keep checkpoints; see [checkpoint.Save]. The checkpoint does not depend on the layout.
	Save(ctx context.Context, dir string, meta any, keep int) error
	// Load replaces the run's state by a checkpoint's, of any layout: the next step is the one that the saved run
	// would have made. A checkpoint of another recipe is an error, and leaves the run unchanged.
	Load(ctx context.Context, c *checkpoint.Checkpoint) error
	// Memory returns the peak bytes of each kind on a device in the last step. memest.Temporary is the working memory
	// of the program that needs most.
	Memory() map[memest.Kind]int64
	// Traffic returns the bytes that a device or, between ranks, a rank sent in the last step, by mesh axis.
	Traffic() (map[string]int64, error)
	// Plan returns what each rank does in the next step, and when.
	Plan() *step.Plan
	// Close frees everything. Later calls return an error.
	Close() error
}

// ErrElsewhere is wrapped by the error of a rank that failed only because another rank did. Report the other rank's
// error instead, which names the cause.
var ErrElsewhere = errors.New("it says why")
