package main

import (
	"context"
	"os/exec"

	"github.com/spf13/pflag"
)

// benchmark is one comparison: cases, and implementations that all of them are measured on.
type benchmark struct {
	name, about string

	// untimed is set where the implementations are compared by their facts alone. No samples are taken.
	untimed bool

	// peers is whether the peers are measured without --peers.
	peers bool

	// rounds is the number of rounds by default; 0 means 15.
	rounds int

	// staged is set where not all processes can be there at the same time, as they share a device's memory: there are
	// those of the class of the cases that are measured, started for them. An implementation that fails is left out.
	staged bool

	// flags adds the benchmark's own flags. cases and implementations follow them.
	flags           func(*pflag.FlagSet)
	cases           func() ([]testCase, error)
	implementations func() []implementation

	// targets are checked at the end of a run. It may be nil.
	targets func([]record) []target
}

// target is what the project wants of a result.
type target struct {
	text string
	met  bool
}

func (t target) String() string {
	if t.met {
		return "PASS: " + t.text
	}
	return "FAIL: " + t.text
}

// testCase is one thing to measure.
type testCase struct {
	name string

	// class, where it is not "", is that of the implementations that do the case.
	class string

	// apart is set in a staged benchmark where there is room for one implementation at a time: all samples of one are
	// taken before the next one is started. A round is then the samples of the same number.
	apart bool

	// failed, if not nil, is told of an implementation that fails or has a wrong result. It is left out, or where it
	// had samples already these count. Without it the case ends with the error.
	failed func(error)

	// sampleMS is how long a sample should take in milliseconds; 0 means defaultSampleMS.
	sampleMS float64

	// params is sent to the workers, as JSON.
	params any

	// want is what the facts' values must be, and within the error allowed. Without
	// want they must be those of the first implementation.
	want   []float64
	within float64

	// describe fills in the details of a record of the case. It may be nil.
	describe func(r *record)
}

// role is the side that an implementation is on.
type role string

const (
	ours    role = "ours"
	variant role = "variant" // ours as well, but compared with the best of ours as the peers are
	peer    role = "peer"
	limit   role = "limit" // the best that the machine could do
	base    role = "base"  // what others' times are divided by before they are compared: see implementation.over
)

// implementation is one way to do the cases. It has either serve or commands; under mpirun both.
type implementation struct {
	name  string
	about string
	role  role

	// over names the base of this implementation. If set, costs are compared instead
	// of times: the time over the base's in the same round.
	over string

	// class, where it is not "", is what only some implementations do. Ours, variants,
	// peers and limits are compared within their class.
	class string

	// serve makes the subject in a worker process of this program, which is started with args and env added.
	serve server
	args  []string
	env   []string

	// commands are the programs to start, each of which connects to the socket that [envSocket] names.
	commands commands

	// processes is how many connect; 0 means one for each command.
	processes int
}

// server makes a subject, and a function that ends it.
type server func(ctx context.Context) (subject, func(), error)

// commands makes the commands that start an implementation's processes.
type commands func(ctx context.Context, p place) ([]*exec.Cmd, error)

// subject is what is measured, inside a worker process. Its methods are called one at a time.
type subject interface {
	// prepare gets ready for a case and does it a few times. It returns an error
	// if the result is wrong, and an errUnsupported if the case cannot be done.
	prepare(params []byte) (facts, error)

	// sample does the case calls times and returns the mean time in milliseconds.
	sample(calls int) (float64, error)

	// finish checks the result once more and frees what prepare made.
	finish() error
}

// facts are what an implementation reports of a case besides its time.
type facts struct {
	// Values are results that all implementations must have.
	Values []float64 `json:"values,omitempty"`

	// FirstMS is the time of a case's first step in milliseconds, in which it is traced and compiled where the
	// implementation does that. The state is on the devices before.
	FirstMS float64 `json:"first_ms,omitempty"`

	Memory footprint `json:"memory,omitzero"`
}

// footprint is the memory that a case needs, in bytes. Of a compiled program it is known
// beforehand; of others there is the process's peak, or its rise in a call.
type footprint struct {
	Arguments int64 `json:"arg_bytes,omitempty"`
	Outputs   int64 `json:"out_bytes,omitempty"` // those that do not alias an argument
	Temporary int64 `json:"temp_bytes,omitempty"`
	PeakRSS   int64 `json:"peak_rss_bytes,omitempty"`
	ExtraRSS  int64 `json:"extra_rss_bytes,omitempty"`

	// DevicePeak is the most memory on a GPU, as the library's allocator counts it.
	DevicePeak int64 `json:"device_peak_bytes,omitempty"`
}

// planned is all that a compiled program needs at once; 0 if nothing is compiled.
func (m footprint) planned() int64 { return m.Arguments + m.Outputs + m.Temporary }
