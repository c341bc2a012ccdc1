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

// Trainer trains a model, whatever it is spread over: one device or several, of this process or of a group. It is not
// safe for use by several goroutines at once.
//
// Every call ends when its context does. One that ends in the middle of a step leaves the run lost, and so does any
// error of a step but that of a batch that does not fit: what is asked of the run after says so, and by what. Go on in
// a new one, from the last checkpoint: batches are functions of the step's number, so none is lost and none comes
// twice.
//
// Where each process has one rank of a group the calls that take a context are collective: all ranks make them, with
// the same arguments.
type Trainer interface {
	// Step trains on one batch, inputs and targets of shape (B,…). Its rows are dealt to the devices that have other
	// rows, and to micro-batches; a B that cannot be is an error, as is a batch that the model refuses ([Checker]), and
	// leaves the run as it was.
	Step(ctx context.Context, inputs, targets *tensors.Tensor) (Metrics, error)
	// Evaluate returns the mean loss over a batch, without noise such as dropout's, and changes nothing.
	Evaluate(ctx context.Context, inputs, targets *tensors.Tensor) (float64, error)
	// Steps is the number of batches trained on, and so the number of the next one, from 0.
	Steps() int
	// Params returns copies of the parameters, whole, by name and in the type that the precision keeps them in: of a
	// rank of a group those that it has.
	Params(ctx context.Context) (params.Named[*tensors.Tensor], error)
	// Save writes the state as the checkpoint of its step into the folder dir, with the caller's metadata, and keeps
	// the newest keep of them; see [checkpoint.Save]. What is saved does not depend on what the run is spread over.
	Save(ctx context.Context, dir string, meta any, keep int) error
	// Load puts a checkpoint's state in the place of the run's: the next step is what it would have been in the run
	// that was saved. A checkpoint of another recipe is an error, and leaves the run as it was.
	Load(ctx context.Context, c *checkpoint.Checkpoint) error
	// Memory is the most that a device has held of each kind at once in the last step, in bytes. What a program needs
	// besides while it runs is memest.Temporary, of the program that needs most.
	Memory() map[memest.Kind]int64
	// Traffic is what a device, and between ranks a rank, has sent in the last step, in bytes, by axis.
	Traffic() (map[string]int64, error)
	// Plan is what each rank does in the next step, and when.
	Plan() *step.Plan
	// Close frees everything. What is asked of the run after is an error.
	Close() error
}

// ErrElsewhere is what an error wraps that a rank has only because another has one of its own, which says why: to
// report the first would say less.
var ErrElsewhere = errors.New("it says why")
