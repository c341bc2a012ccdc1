package memest

// Schedule is the order in which the stages of a pipeline work on micro-batches.
type Schedule string

// The schedules whose memory is known.
const (
	Naive       Schedule = "naive"       // one micro-batch at a time goes through all stages and back
	GPipe       Schedule = "gpipe"       // all forward passes, then all backward passes (Huang et al. 2019)
	OneFOneB    Schedule = "1f1b"        // forward and backward by turns (Narayanan et al. 2021, §2.2.1)
	Interleaved Schedule = "interleaved" // the same, of several chunks a device (§2.2.2)
	ZBH1        Schedule = "zb-h1"       // zero bubble at 1F1B's memory (Qi et al. 2023, §2.3)
	ZBH2        Schedule = "zb-h2"       // no bubble at twice the memory
	ZBV         Schedule = "zb-v"        // no bubble at 1F1B's memory, stages in a V (§6)
	// from both ends at once, two copies of the parameters (DeepSeek-AI 2024, §3.2.1)
	DualPipe Schedule = "dualpipe"
)

// Schedules lists them all.
func Schedules() []Schedule {
	return []Schedule{Naive, GPipe, OneFOneB, Interleaved, ZBH1, ZBH2, ZBV, DualPipe}
}

// inFlight is the most micro-batches whose activations the device at a stage, counted from 0, holds at once, counted in
// whole stages: a chunk of one of v is 1/v. It is a fraction, over the denominator of so many chunks.
func (l Layout) inFlight(stage, microbatches int) (n, denominator int64) {
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
		// Of the first stage (v-1)·p+2·(p-1)+1 chunks. Narayanan et al. 2021, §2.2; Korthikanti et al.
		// 2022, §4.2.3: L·(1+(p-1)/(p·v)) layers on the first stage.
		return min((v-1)*p+2*(p-1-r)+1, m*v), v
	case ZBH1:
		// All stages have the same number in flight (Qi et al. 2023, §2.1), the last ones mostly such as wait for the
		// weight gradient alone. That needs less, which is not counted here.
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

// device is what a device of a pipeline has of the model.
type device struct {
	first, blocks int  // the first of its blocks, and how many it has
	embeds, heads bool // it has the embedding, the head
}

// devices deals a model to the devices of a pipeline. Those of interleaved and V-shaped schedules have several runs of
// blocks, of which the first stands for all: the blocks are alike.
func (l Layout) devices(blocks int) []device {
	parts := cut(blocks, l.Pipeline)
	devices := make([]device, l.Pipeline)
	last := l.Pipeline - 1
	for i, part := range parts {
		devices[i] = device{part[0], part[1] - part[0], i == 0, i == last}
	}
	switch {
	case l.Pipeline == 1:
	case l.Schedule == ZBV: // down the devices and up again
		devices[0].heads, devices[last].heads = true, false
	case l.Schedule == DualPipe: // each has the stage that is as far from the other end, too
		for i := range devices {
			both := parts[i][1] - parts[i][0] + parts[last-i][1] - parts[last-i][0]
			ends := i == 0 || i == last
			devices[i] = device{min(parts[i][0], blocks-both), both, ends, ends}
		}
	}
	return devices
}

// cut deals the blocks of a model to the stages of a pipeline, as evenly as can be, the first ones getting one more.
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
