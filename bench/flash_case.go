package main

import (
	"encoding/json"
	"fmt"
	"math"
)

// flashCase is attention to be computed, of one sequence.
type flashCase struct {
	Tokens   int  `json:"tokens"`
	Heads    int  `json:"heads"`
	Width    int  `json:"width"` // of a head
	Backward bool `json:"backward"`

	// Fits: there is memory for the scores of all pairs of tokens.
	Fits bool `json:"fits"`
}

// flashSmall are the cases that workers do before anything is measured, so that what a
// library allocates once, such as its threads, is not counted as a case's memory.
var flashSmall = []flashCase{
	{Tokens: 128, Heads: flashHeads, Width: flashWidth},
	{Tokens: 128, Heads: flashHeads, Width: flashWidth, Backward: true},
}

const (
	flashHeads = 8
	flashWidth = 64

	// flashMost bounds what may be asked for.
	flashMost = 1 << 20

	// flashCopies is the number of arrays as large as the scores of all pairs that there
	// must be memory for: softmax and gradients need some more.
	flashCopies = 6

	// flashTolerance is the error allowed of fingerprints. Rounding shows in their seventh decimal.
	flashTolerance = 1e-5
)

func (c flashCase) op() string {
	if c.Backward {
		return "forward+backward"
	}
	return "forward"
}

func (c flashCase) String() string { return fmt.Sprintf("%s, %d tokens", c.op(), c.Tokens) }

func (c flashCase) describe(r *record) { r.Op, r.Tokens = c.op(), c.Tokens }

// scores is the size of the scores of all pairs of tokens, in bytes.
func (c flashCase) scores() int64 { return 4 * int64(c.Heads) * int64(c.Tokens) * int64(c.Tokens) }

// elements is the size of each operand and result, (tokens, heads, width).
func (c flashCase) elements() int { return c.Tokens * c.Heads * c.Width }

// parseFlash reads what a worker is asked to prepare, for an implementation that holds
// the scores of all pairs, or does not.
func parseFlash(params []byte, holdsScores bool) (c flashCase, err error) {
	if err = json.Unmarshal(params, &c); err == nil && holdsScores && !c.Fits {
		err = errUnsupported(fmt.Sprintf("too little free memory for the scores of all pairs, %s MiB several times",
			mebibytes(c.scores())))
	}
	return c, err
}

// flashData returns the array of that number and size, uniform in ±√3: the variance is 1,
// and so is that of the scores. 0, 1 and 2 are q, k and v.
func flashData(number, elements int) []float32 {
	data := make([]float32, elements)
	for i := range data {
		unit := float64(splitmix(uint64(number)<<32+uint64(i))>>40) / (1 << 24)
		data[i] = float32((2*unit - 1) * math.Sqrt(3))
	}
	return data
}

// splitmix is the finalizer of splitmix64 (Steele, Lea and Flood 2014).
func splitmix(z uint64) uint64 {
	z += 0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// fingerprint stands for a result where implementations are compared: its dot product with random numbers, over the
// root of the number of elements. An error e of the elements is an error of about e.
func fingerprint(result []float32) float64 {
	sum := 0.0
	for i, r := range flashData(3, len(result)) {
		sum += float64(r) * float64(result[i])
	}
	return sum / math.Sqrt(float64(len(result)))
}
