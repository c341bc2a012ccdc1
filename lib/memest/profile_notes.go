package memest

import "fmt"

// Notes computes states and activations as course notes on LLM training acceleration do, for training in 16 bits with
// Adam. The notes' GB are 10⁹ bytes.
type Notes struct {
	Params int64 // X·10⁹, or Φ

	Layers    int // L
	Width     int // d
	Heads     int // H
	Sequence  int // s
	Batch     int // b
	Precision int // p, bytes of an activation
}

// Reading is one of the formulas for activations in the notes. They contradict each other.
type Reading string

const (
	// NormsTogether is the sum of the parts with 2bsdp for both normalizations of a layer: (9+5+2)bsdp + 2bsd + 2bs²Hp
	// + bs²H.
	NormsTogether Reading = "norms together"
	// NormsEach is the sum of the parts with 2bsdp for each normalization: (9+5+4)bsdp + 2bsd + 2bs²Hp + bs²H.
	NormsEach Reading = "norms each"
	// PrintedTotal is the sum that the notes print: 17bsdp + 2bsd + 2bs²Hp + bs²H. It equals neither of the above.
	// 17bsdp is 16bsdp + 2bsd at p=2, so 2bsd seems to be counted twice.
	PrintedTotal Reading = "printed total"
	// Approximation is the notes' formula for p=2, 34bsd + 5bs²H: exactly NormsTogether at p=2, and equation 1 of
	// Korthikanti et al. 2022.
	Approximation Reading = "approximation"
	// HiddenCode is a function in a comment of the notes, pdbs·(16 + 2/p + 2Hs/d + Hs/(pd)): NormsTogether for every p.
	HiddenCode Reading = "code in a comment"
)

// Readings returns all readings.
func Readings() []Reading {
	return []Reading{NormsTogether, NormsEach, PrintedTotal, Approximation, HiddenCode}
}

// States lists the model states: (2+2+12)·X, or 16Φ, bytes. It returns an error if Params is invalid.
func (n Notes) States() ([]Item, error) {
	if err := inRange("Notes", field{"Params", n.Params, 1, mostParameters}); err != nil {
		return nil, err
	}
	return vars{"P": n.Params}.published("course notes on LLM training acceleration, table of storage with Adam",
		Item{Kind: Parameters, Name: "16-bit parameters", Formula: "2*P"},
		Item{Kind: Master, Name: "32-bit parameters", Formula: "4*P"},
		Item{Kind: Gradients, Name: "16-bit gradients", Formula: "2*P"},
		Item{Kind: Optimizer, Name: "32-bit momentum", Formula: "4*P"},
		Item{Kind: Optimizer, Name: "32-bit variance", Formula: "4*P"},
	)
}

// Activations lists the saved activations of all layers, without the embedding and the head. The notes print their
// total for "a L layer Transformer", but without a factor L; here L is the count of each line. It returns an error for
// an invalid field or an unknown reading.
//
// The notes' table of activations follows from none of these formulas.
func (n Notes) Activations(r Reading) ([]Item, error) {
	if err := inRange("Notes", field{"Layers", int64(n.Layers), 1, 1 << 20}, field{"Width", int64(n.Width), 1, 1 << 31},
		field{"Heads", int64(n.Heads), 1, 1 << 31}, field{"Sequence", int64(n.Sequence), 1, 1 << 31},
		field{"Batch", int64(n.Batch), 1, 1 << 31}, field{"Precision", int64(n.Precision), 1, 8}); err != nil {
		return nil, err
	}
	type line struct{ name, formula string }
	attention := []line{
		{"queries, keys and values", "3*b*s*d*p"}, {"softmax's input and output", "2*b*s*s*H*p"},
		{"dropout after softmax", "b*s*s*H"},
		{"output of the heads", "b*s*d*p"}, {"output projection", "b*s*d*p"}, {"attention's dropout", "b*s*d"},
	}
	mlp := []line{
		{"MLP's first layer", "4*b*s*d*p"}, {"MLP's activation", "4*b*s*d*p"},
		{"MLP's second layer", "b*s*d*p"}, // the table's row says 4bsdp, but its total of 9bsdp + bsd has this
		{"MLP's dropout", "b*s*d"},
	}
	var lines []line
	switch r {
	case NormsTogether:
		lines = append(append(mlp, attention...), line{"both normalizations", "2*b*s*d*p"})
	case NormsEach:
		lines = append(append(mlp, attention...), line{"first normalization", "2*b*s*d*p"},
			line{"second normalization", "2*b*s*d*p"})
	case PrintedTotal:
		lines = []line{{"linear layers", "17*b*s*d*p"}, {"softmax", "2*b*s*s*H*p"},
			{"dropout", "2*b*s*d"}, {"dropout after softmax", "b*s*s*H"}}
	case Approximation:
		if n.Precision != 2 {
			return nil, fmt.Errorf("memest: Notes.Precision is %d: set it to 2 for the approximation", n.Precision)
		}
		lines = []line{{"linear in s", "34*b*s*d"}, {"quadratic in s", "5*b*s*s*H"}}
	case HiddenCode:
		lines = []line{{"linear in s", "p*s*b*d*(16+2/p)"}, {"quadratic in s", "p*s*b*d*(2*H*s/d+H*s/(p*d))"}}
	default:
		return nil, fmt.Errorf("memest: unknown reading %q of the notes: choose one of %q", r, Readings())
	}
	items := make([]Item, len(lines))
	for i, l := range lines {
		items[i] = Item{Kind: Activations, Name: l.name, Count: int64(n.Layers), Formula: l.formula}
	}
	v := vars{"d": int64(n.Width), "H": int64(n.Heads), "s": int64(n.Sequence), "b": int64(n.Batch),
		"p": int64(n.Precision)}
	return v.published("course notes on LLM training acceleration, activations: "+string(r), items...)
}
