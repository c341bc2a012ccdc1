package memest

// Schedule is a pipeline schedule.
type Schedule string

// The schedules whose memory is known.
const (
	Naive       Schedule = "naive"       // one micro-batch at a time
	GPipe       Schedule = "gpipe"       // all forward passes, then all backward passes (Huang et al. 2019)
	OneFOneB    Schedule = "1f1b"        // one forward, one backward (Narayanan et al. 2021, §2.2.1)
	Interleaved Schedule = "interleaved" // 1F1B with several model chunks on each device (§2.2.2)
	ZBH1        Schedule = "zb-h1"       // a third of 1F1B's bubble at its memory (Qi et al. 2023, §2.3)
	ZBH2        Schedule = "zb-h2"       // zero bubble at twice 1F1B's memory
	ZBV         Schedule = "zb-v"        // zero bubble at 1F1B's memory, two chunks on each device in a V (§6)
	DualPipe    Schedule = "dualpipe"    // from both ends, with two copies of the parameters (DeepSeek-AI 2024, §3.2.1)
)

// Schedules returns all schedules.
func Schedules() []Schedule {
	return []Schedule{Naive, GPipe, OneFOneB, Interleaved, ZBH1, ZBH2, ZBV, DualPipe}
}

// inFlight returns the largest number of micro-batches whose activations a stage, counted from 0, holds at once. One of
// v chunks of a stage counts 1/v, so that the number is a fraction.
func (l Parallelism) inFlight(stage, microbatches int) (n, denominator int64) {
	p, m, r, v := int64(l.Pipeline), int64(microbatches), int64(stage), int64(l.Chunks)
	switch l.Schedule {
	case Naive:
		return 1, 1
	case GPipe:
		return m, 1
	case Interleaved:
		if v == 1 {
			break // 1F1B
		}
		// Narayanan et al. 2021, §2.2. On the first stage these are L·(1+(p-1)/(p·v)) layers (Korthikanti et al. 2022,
		// §4.2.3).
		return min((v-1)*p+2*(p-1-r)+1, m*v), v
	case ZBH1:
		// All stages have the same number in flight (Qi et al. 2023, §2.1). On the last stages most wait only for the
		// weight gradient and need less memory than is counted here.
		return min(p, m), 1
	case ZBH2:
		return min(2*p-1, m), 1
	case ZBV:
		return min(p, m), 1 // less where m < 2p-1, on the first devices
	case DualPipe:
		return min(p+1, m), 2 // of two stages
	}
	return min(p-r, m), 1 // 1F1B
}

// device is the part of the model on a device of a pipeline.
type device struct {
	first, blocks int  // the first of its blocks, and their number
	dense         int  // the number of its blocks that have an MLP, not experts: its first ones
	embeds, heads bool // it has the embedding, the head
}

// devices splits a model over a pipeline's devices. With several chunks on a device it lists them as one, since all
// blocks need the same memory, except for the first dense ones of a model with experts.
func (l Parallelism) devices(blocks, dense int) []device {
	parts := cut(blocks, l.Pipeline)
	devices := make([]device, l.Pipeline)
	last := l.Pipeline - 1
	denseOf := func(part [2]int) int { return max(0, min(part[1], dense)-part[0]) }
	for i, part := range parts {
		devices[i] = device{part[0], part[1] - part[0], denseOf(part), i == 0, i == last}
	}
	switch {
	case l.Pipeline == 1:
	case l.Schedule == ZBV: // down the devices and up again
		devices[0].heads, devices[last].heads = true, false
	case l.Schedule == DualPipe: // device i has stages i and last-i
		for i := range devices {
			both := parts[i][1] - parts[i][0] + parts[last-i][1] - parts[last-i][0]
			ends := i == 0 || i == last
			devices[i] = device{min(parts[i][0], blocks-both), both, denseOf(parts[i]) + denseOf(parts[last-i]), ends,
				ends}
		}
	}
	return devices
}

// cut splits blocks into stages as evenly as possible; the first ones get one more.
func cut(blocks, stages int) [][2]int {
	parts := make([][2]int, stages)
	from := 0
	for i := range parts {
		n := blocks / stages
		if i < blocks%stages {
			n++
		}
		parts[i] = [2]int{from, from + n}
		from += n
	}
	return parts
}
