package resident

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"unsafe"
)

// Env names the environment variable with the socket of the notebook's process. Package kernel sets it.
const Env = "SHARDBOOK_RESIDENT"

// Start asks the notebook's process for a process with devices.
type Start struct {
	Env []string // variables that it depends on, as "NAME=value"
}

// Started answers Start.
type Started struct {
	Socket string
	Notes  []string // what the user should know: processes that have ended, and what was lost
}

// Why asks why a process with devices has ended.
type Why struct{ Socket string }

// Because answers Why.
type Because struct{ Text string }

// Notebook returns the connection of this cell to its notebook's process.
var Notebook = sync.OnceValues(func() (*Conn, error) {
	path := os.Getenv(Env)
	if path == "" {
		return nil, fmt.Errorf("this program was built for a notebook's kernel, but %s is not set: run it as a cell, or "+
			"build it without the tag \"resident\"", Env)
	}
	c, err := Dial(path)
	if err != nil {
		return nil, fmt.Errorf("the notebook's process does not answer: %w; restart the kernel", err)
	}
	return c, nil
})

// relevant reports whether a process with devices depends on an environment variable.
func relevant(variable string) bool {
	name, _, _ := strings.Cut(variable, "=")
	switch name {
	case Env, "SHARDBOOK_PARAMS":
		return false
	case "GLIBC_TUNABLES", "NPROC", "OMP_NUM_THREADS":
		return true
	}
	for _, prefix := range []string{"XLA_", "SHARDBOOK_", "PJRT_", "TF_", "CUDA_", "NVIDIA_"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

var devices struct {
	sync.Mutex
	conn   *Conn
	socket string
}

// ArrayOf returns the number of the array of a *tensors.Tensor, if that is on a device, else 0. Package xla sets it, so
// that cells which keep other values need not link that.
var ArrayOf = func(tensor any) uint64 { return 0 }

// others are connections to processes whose arrays are read, by socket.
var others sync.Map

// Content returns the content of an array that a process keeps.
func (k KeptArray) Content() ([]byte, error) {
	connect, _ := others.LoadOrStore(k.Socket, sync.OnceValues(func() (*Conn, error) { return Dial(k.Socket) }))
	c, err := connect.(func() (*Conn, error))()
	if err != nil {
		return nil, fmt.Errorf("the process that had it has ended: %w", err)
	}
	if k.Offset >= 0 && c.Memory != nil {
		return slices.Clone(unsafe.Slice((*byte)(c.Memory.At(k.Offset)), k.Type.SizeForDimensions(k.Dims...))), nil
	}
	got, err := Call[Content](c, Read{k.ID})
	return got.Bytes, err
}

// KeepArray copies an array of this cell's devices, for the notebook to keep.
func KeepArray(number uint64) (KeptArray, error) {
	devices.Lock()
	defer devices.Unlock()
	copied, err := Call[Array](devices.conn, Keep{Array: number})
	return KeptArray{devices.socket, copied}, err
}

// Devices returns the connection of this cell to the process with the devices. It is started with the environment that
// the first call finds, as XLA reads it once.
func Devices() (*Conn, error) {
	devices.Lock()
	defer devices.Unlock()
	if devices.conn != nil {
		return devices.conn, nil
	}
	notebook, err := Notebook()
	if err != nil {
		return nil, err
	}
	var start Start
	for _, variable := range os.Environ() {
		if relevant(variable) {
			start.Env = append(start.Env, variable)
		}
	}
	var started Started
	var c *Conn
	for try := range 2 { // the first process may be about to end, because the cell before was interrupted
		if started, err = Call[Started](notebook, start); err != nil {
			return nil, err
		}
		for _, note := range started.Notes {
			fmt.Println(note)
		}
		because := func(err error) error { return why(notebook, started.Socket, err) }
		if c, err = dial(started.Socket, because); err == nil {
			break
		}
		if err = because(err); try > 0 {
			return nil, fmt.Errorf("the process with the devices does not answer: %w", err)
		}
	}
	devices.conn, devices.socket = c, started.Socket
	return c, nil
}

// why returns the reason for which a process has ended, if it has.
func why(notebook *Conn, socket string, err error) error {
	because, problem := Call[Because](notebook, Why{socket})
	if problem != nil || because.Text == "" {
		return err
	}
	return fmt.Errorf("%w: %w", ErrGone, errors.New(because.Text))
}

// Unrelated returns the variables of an environment on which no process with devices depends.
func Unrelated(env []string) []string { return slices.DeleteFunc(slices.Clone(env), relevant) }
