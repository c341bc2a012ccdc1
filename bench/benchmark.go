package main

import (
	"context"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/shardbook/shardbook/lib/chart"
)

// benchmark is one comparison: cases, and implementations that all of them are
// measured on.
type benchmark interface {
	name() string
	about() string

	// flags adds the benchmark's own flags to its command.
	flags(cmd *cobra.Command)

	// cases returns the cases that the flags ask for.
	cases() ([]testCase, error)

	implementations() []implementation

	// charts draws the records of a run.
	charts(records []record) []*chart.Chart
}

// untimed is a benchmark of what implementations know of themselves: their facts. No
// samples are taken.
type untimed interface{ untimed() }

// testCase is one thing to measure.
type testCase struct {
	name string

	// class, where it is not "", is that of the implementations that do the case: no others are asked to.
	class string

	// params is sent to the workers, as JSON; only the benchmark knows its fields.
	params any

	// want is what the facts' values must be, and within how far they may be from
	// it. Without it they must be what the first implementation says.
	want   []float64
	within float64

	// hear is told what each implementation says the values are, once they agree. It may be nil.
	hear func(implementation string, values []float64)

	// describe fills in what the benchmark has to say about a record of the case.
	// It may be nil.
	describe func(r *record)
}

// role is the side that an implementation is on.
type role string

const (
	ours    role = "ours"
	variant role = "variant" // ours as well, but compared with the best of ours as the peers are
	peer    role = "peer"
	limit   role = "limit" // what the machine could do at best, if nothing else were to be done
	base    role = "base"  // what others' times are divided by before they are compared: see implementation.over
)

// implementation is one way to do the cases. It has either serve or commands.
type implementation struct {
	name  string
	about string
	role  role

	// over names the implementation of role base that this one is compared by: not
	// by its times, but by its cost, which is its time over the base's in the same
	// round. "" is none.
	over string

	// class, where it is not "", is what only some implementations do. Ours, variants,
	// peers and limits are compared within their class.
	class string

	// serve makes the subject in a worker process of this very program, which is
	// started with args and env added. The function returned ends the subject.
	serve func(ctx context.Context) (subject, func(), error)
	args  []string
	env   []string

	// commands are the programs to start. They find the socket to connect to in
	// the environment.
	commands func(ctx context.Context, p place) ([]*exec.Cmd, error)

	// processes is how many connect; 0 means 1.
	processes int
}

// place is what commands may need to know.
type place struct {
	dir     string // temporary, gone after the run
	scripts string // folder with the peers' programs
	python  string // with the peers' packages
}

// subject is what is measured, inside a worker process. Its methods are called one
// at a time.
type subject interface {
	// prepare gets ready for a case and does it a few times. It returns an error
	// if the result is wrong, and an errUnsupported if the case cannot be done.
	prepare(params []byte) error

	// sample does the case so many times and returns the milliseconds of each.
	sample(calls int) (float64, error)

	// finish checks the result once more and frees what prepare made.
	finish() error
}

// facts are what an implementation has to say about a case that it has prepared. A
// subject that has any has a method facts() (facts, error).
type facts struct {
	// Values are results that all implementations must have.
	Values []float64 `json:"values,omitempty"`

	Memory footprint `json:"memory,omitzero"`
}

// footprint is what an implementation needs for a case, in bytes. A compiled program
// knows beforehand; of others there is the process's peak, or its rise in a call.
type footprint struct {
	Arguments int64 `json:"arg_bytes,omitempty"`
	Outputs   int64 `json:"out_bytes,omitempty"` // those that take no argument's place
	Temporary int64 `json:"temp_bytes,omitempty"`
	PeakRSS   int64 `json:"peak_rss_bytes,omitempty"`
	ExtraRSS  int64 `json:"extra_rss_bytes,omitempty"`
}

// planned is all that a compiled program needs at once, 0 for what is not one.
func (m footprint) planned() int64 { return m.Arguments + m.Outputs + m.Temporary }
