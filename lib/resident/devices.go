package resident

import "github.com/gomlx/compute/dtypes"

// The requests to a process that owns devices. IDs are its own numbers for what it holds.

// Open opens devices, or finds those that are open with the same options.
type Open struct {
	Devices  int    // 0: the default
	Share    int    // as in xla.Share
	GPU      string // as in xla.CompileFor
	Plugin   string // as in xla.Plugin
	CacheDir string
	Options  map[string]bool // by name, of those that the devices depend on
}

// Opened answers Open.
type Opened struct {
	Client           uint64
	Devices          []string // descriptions
	Count            int      // of xla.Backend, whose devices may share these
	Platform, Plugin string
	Source, API      string
	Capability       [2]int // of xla.Backend: the least compute capability of GPUs
	Canaries         []Canary
}

// Canary is an xla.Canary.
type Canary struct {
	Name      string
	Wrong, Of int
}

// Kernel makes a C kernel callable: one of the process's own, or a function of a library.
type Kernel struct {
	Client          uint64
	Name            string
	Library, Symbol string // "": its own
}

// Compile compiles a StableHLO program, or finds it.
type Compile struct {
	Client     uint64
	Program    []byte
	Strategy   Strategy
	Devices    int
	Assignment []int
}

// Strategy is how a program uses several devices.
type Strategy int

// The strategies of GoMLX.
const (
	OneDevice Strategy = iota
	SPMD
	Shardy
)

// Compiled answers Compile.
type Compiled struct {
	Program          uint64
	Name             string
	Outputs          int
	OnDevice, OnHost MemoryUse
}

// MemoryUse is the memory of a program, in bytes.
type MemoryUse struct{ Code, Inputs, Outputs, Aliases, Temporary int64 }

// Execute runs a program. The inputs are device-major.
type Execute struct {
	Program uint64
	Inputs  []uint64
	Donate  []bool
	Device  int // of a program for any one device; else -1
}

// Executed answers Execute.
type Executed struct{ Outputs []Array }

// Array is an array on a device.
type Array struct {
	ID     uint64
	Type   dtypes.DType
	Dims   []int
	Device int
	Offset int64 // of its content in the shared memory; -1: not there
}

// Make makes an array. If it is not in the shared memory, it has the content.
type Make struct {
	Client  uint64
	Type    dtypes.DType
	Dims    []int
	Device  int
	Content []byte
}

// Read asks for an array's content.
type Read struct{ Array uint64 }

// Content answers Read.
type Content struct{ Bytes []byte }

// Copy copies an array to a device, also to its own.
type Copy struct {
	Array  uint64
	Device int
}

// Free frees arrays and programs; it has no answer.
type Free struct{ Arrays, Programs []uint64 }

// Keep copies an array to a number that stays when the cell has ended, and frees such copies.
type Keep struct {
	Array uint64 // 0: none
	Free  []uint64
}

// Done answers requests with no result.
type Done struct{ OK bool }
