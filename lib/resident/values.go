package resident

// The requests for kept values to the notebook's process.

// Put keeps a value under a name.
type Put struct {
	Name    string
	Data    []byte
	Arrays  []KeptArray // of which Data has places in this list
	Program string      // the folder with the source of the cell's program
}

// KeptArray is a copy of an array that a process with devices keeps.
type KeptArray struct {
	Socket string // of the process
	Array
}

// Get asks for a value.
type Get struct{ Name, Program string }

// Got answers Get.
type Got struct {
	Found   bool
	Data    []byte
	Arrays  []KeptArray
	Changed []string // declarations that have changed since, on which the cell that kept the value depends
	Lost    string   // why the arrays are gone
}

// Names asks for the names of all values.
type Names struct{ All bool }

// NamesAre answers Names.
type NamesAre struct{ Sorted []string }
