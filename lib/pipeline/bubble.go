package pipeline

// Bubble returns the fraction of a step in which a rank is idle, idle/total, by the closed forms of the papers. Forward
// pass, input gradient and weight gradient take equally long, and messages no time. A step takes as long as the rank
// with the longest time from its first to its last pass, since steps that follow each other without a barrier start
// that often (Qi et al. 2023, §5.3, "cost"). Chunks is as in [NewSchedule]. ok is false for asynchronous kinds, whose
// steps have no end, for unknown kinds, and for sizes that the kind cannot have.
//
// With d ranks, m micro-batches and v chunks:
//
//	naive            d-1 of d: one rank works at a time
//	gpipe, 1f1b      d-1 of m+d-1 (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training …", §2.2.1)
//	interleaved      d-1 of v·m+d-1 (the same, §2.2.2)
//	breadth-first    d-1 of v·m+d-1 where m >= d; else each chunk but the first waits for d-m micro-batches
//	looped           d-1 of v·m+d-1 where d divides m; else each chunk but the first waits for d-m%d micro-batches
//	zb-h1            d-1 of 3m+d-1 where m >= d (Qi et al. 2023, §2.1 and §2.3); for fewer, d-m more
//	zb-h2            0 where m >= 2d-1 (§2.2); for fewer, 2d-1-m of 3m+2d-1-m
//	zb-v             0 where m >= 2d-1 (§6); for fewer, the same fraction as zb-h2
//	dualpipe         d-2 of 3m+d-2
//
// The published bubble of DualPipe is (d/2-1)(F&B + B - 3W), where F&B is the time of a pair (DeepSeek-AI 2024, table
// 2). Without time to hide F&B = F+B = 3, which makes d-2.
func Bubble(kind Kind, ranks, microbatches, chunks int) (idle, total int, ok bool) {
	if chunks == 0 && kind.Chunked() {
		chunks = 2
	}
	d, m, v := ranks, microbatches, max(chunks, 1)
	if d < 1 || m < 1 || chunks < 0 || (v > 1 && !kind.Chunked()) || d > maxPasses || m > maxPasses || v > maxPasses {
		return 0, 0, false
	}
	work := 3 * m // of a rank, in the unit of idle
	switch kind {
	case KindNaive:
		idle, work = d-1, 1
	case KindGPipe, Kind1F1B:
		idle, work = d-1, m
	case KindInterleaved:
		if v > 1 && m%d != 0 {
			return 0, 0, false
		}
		idle, work = d-1, v*m
	case KindBreadthFirst:
		idle, work = d-1+(v-1)*max(d-m, 0), v*m
	case KindLooped:
		idle, work = d-1+(v-1)*((d-m%d)%d), v*m
	case KindZBH1:
		idle = d - 1 + max(d-m, 0)
	case KindZBH2, KindZBV:
		idle = max(2*d-1-m, 0)
	case KindDualPipe:
		if d%2 != 0 || m%2 != 0 || m < 2*d {
			return 0, 0, false
		}
		idle = d - 2
	default:
		return 0, 0, false
	}
	return idle, work + idle, true
}
