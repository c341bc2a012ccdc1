package main

import "slices"

// sampleTimes are one implementation's times in milliseconds, one a round.
type sampleTimes []float64

// min is the least, or 0 if there are none.
func (t sampleTimes) min() float64 {
	if len(t) == 0 {
		return 0
	}
	return slices.Min(t)
}

func (t sampleTimes) median() float64 { return median(t) }

// median is the middle value, or the mean of the two middle ones; 0 if there are none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	m := len(s) / 2
	if len(s)%2 == 1 {
		return s[m]
	}
	return (s[m-1] + s[m]) / 2
}

// pairRatios divides, round by round, the time of the best of the others in that
// round by ours. It is nil if there are no others.
func pairRatios(mine sampleTimes, others []sampleTimes) []float64 {
	if len(others) == 0 {
		return nil
	}
	ratios := make([]float64, len(mine))
	for i, t := range mine {
		best := others[0][i]
		for _, other := range others[1:] {
			best = min(best, other[i])
		}
		ratios[i] = best / t
	}
	return ratios
}

// compared is a result with the times to compare, which may be costs.
type compared struct {
	result
	least float64 // of the times; of costs the least time over the base's least
}

// costs returns the results with the times of those that have a base divided by its.
// If the base was not measured they have no cost, and become bases, which are not compared.
func costs(results []result) (all []compared) {
	for _, r := range results {
		c := compared{r, r.times.min()}
		if r.over != "" {
			if i := slices.IndexFunc(results, func(b result) bool { return b.name == r.over }); i < 0 {
				c.role = base
			} else {
				c.least /= results[i].times.min()
				c.times = nil
				for round, t := range r.times {
					c.times = append(c.times, t/results[i].times[round])
				}
			}
		}
		all = append(all, c)
	}
	return all
}

// side is what the implementations of one role and class took for a case.
type side struct {
	times   []sampleTimes
	least   float64   // of all times
	best    result    // that of the least median
	first   float64   // the least of the first steps' times
	leanest footprint // the least of those whose memory is planned
}

func sideOf(r role, class string, results []compared) (s side) {
	for _, res := range results {
		if res.role != r || res.class != class {
			continue
		}
		if s.times == nil || res.least < s.least {
			s.least = res.least
		}
		if s.times == nil || res.times.median() < s.best.times.median() {
			s.best = res.result
		}
		if s.first == 0 || res.FirstMS > 0 && res.FirstMS < s.first {
			s.first = res.FirstMS
		}
		if p := res.Memory.planned(); p > 0 && (s.leanest.planned() == 0 || p < s.leanest.planned()) {
			s.leanest = res.Memory
		}
		if len(res.times) > 0 {
			s.times = append(s.times, res.times)
		}
	}
	return s
}

// compare makes the records of one case.
func compare(name string, c testCase, results []result) []record {
	all := costs(results)
	var records []record
	for k, res := range all {
		we, they, bound := sideOf(ours, res.class, all), sideOf(peer, res.class, all), sideOf(limit, res.class, all)
		took := results[k].times
		rec := record{
			Bench: name, Case: c.name, Impl: res.name, Role: res.role, Class: res.class, Samples: took,
			MinMS: round(took.min()), MedianMS: round(took.median()), Rounds: len(took),
			FirstMS: round(res.FirstMS), footprint: res.Memory, Values: res.Values,
		}
		if res.over != "" && res.role != base {
			rec.Over, rec.Cost, rec.MinCost = res.over, round(res.times.median()), round(res.least)
		}
		switch res.role {
		case ours:
			if they.times != nil {
				rec.compareTimes(pairRatios(res.times, they.times), they.least/res.least)
				rec.Best = they.best.name
			}
			if bound.times != nil {
				rec.OfLimit = round(median(pairRatios(res.times, bound.times)))
			}
			rec.compareFirst(they.first, res.FirstMS)
			rec.compareMemory(they.leanest, res.Memory)
		case peer, variant:
			if we.times != nil {
				ratios := pairRatios(res.times, we.times)
				for i, r := range ratios {
					ratios[i] = 1 / r // theirs over ours
				}
				rec.compareTimes(ratios, res.least/we.least)
			}
			rec.compareFirst(res.FirstMS, we.first)
			rec.compareMemory(res.Memory, we.leanest)
		}
		if c.describe != nil {
			c.describe(&rec)
		}
		records = append(records, rec)
	}
	return records
}

func (r *record) compareTimes(ratios []float64, ofLeast float64) {
	r.Ratio, r.RatioMin, r.MinRatio = round(median(ratios)), round(slices.Min(ratios)), round(ofLeast)
}

// compareFirst sets the ratio of the first steps' times if both sides have them.
func (r *record) compareFirst(theirs, ours float64) {
	if r.Over == "" && theirs > 0 && ours > 0 { // with a base, the numbers of devices differ
		r.FirstRatio = round(theirs / ours)
	}
}

// compareMemory sets the ratios of memory if it is planned on both sides.
func (r *record) compareMemory(theirs, ours footprint) {
	if r.Over != "" { // memory is per device, and the numbers of devices differ
		return
	}
	if theirs.planned() > 0 && ours.planned() > 0 {
		r.MemoryRatio = round(float64(theirs.planned()) / float64(ours.planned()))
	}
	if theirs.Temporary > 0 && ours.Temporary > 0 {
		r.TempRatio = round(float64(theirs.Temporary) / float64(ours.Temporary))
	}
}
