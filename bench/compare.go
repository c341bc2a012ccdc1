package main

import "slices"

// side is what the implementations of one role took for a case.
type side struct {
	times   []sampleTimes
	least   float64   // of all times
	best    result    // that of the least median
	leanest footprint // of those who plan their memory, that of the least in all
}

func sideOf(r role, results []result) (s side) {
	for _, res := range results {
		if res.role != r {
			continue
		}
		if s.times == nil || res.times.min() < s.least {
			s.least = res.times.min()
		}
		if s.times == nil || res.times.median() < s.best.times.median() {
			s.best = res
		}
		if p := res.planned(); p > 0 && (s.leanest.planned() == 0 || p < s.leanest.planned()) {
			s.leanest = res.footprint
		}
		s.times = append(s.times, res.times)
	}
	return s
}

// compare makes the records of one case.
func compare(name string, c testCase, results []result) []record {
	we, they, bound := sideOf(ours, results), sideOf(peer, results), sideOf(limit, results)
	load := load1()
	var records []record
	for _, res := range results {
		rec := record{
			Bench: name, Case: c.name, Impl: res.name, Role: res.role,
			MinMS: round(res.times.min()), MedianMS: round(res.times.median()), Rounds: len(res.times),
			footprint: res.footprint, Load1: load,
		}
		switch res.role {
		case ours:
			if they.times != nil {
				rec.compareTimes(pairRatios(res.times, they.times), they.least/res.times.min())
				rec.Best = they.best.name
			}
			if bound.times != nil {
				rec.OfLimit = round(median(pairRatios(res.times, bound.times)))
			}
			rec.compareMemory(they.leanest, res.footprint)
		case peer, variant:
			if we.times != nil {
				ratios := pairRatios(res.times, we.times)
				for i, r := range ratios {
					ratios[i] = 1 / r // theirs over ours, as on our lines
				}
				rec.compareTimes(ratios, res.times.min()/we.least)
			}
			rec.compareMemory(res.footprint, we.leanest)
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

// compareMemory sets ratios where both sides plan their memory.
func (r *record) compareMemory(theirs, ours footprint) {
	if theirs.planned() > 0 && ours.planned() > 0 {
		r.MemoryRatio = round(float64(theirs.planned()) / float64(ours.planned()))
	}
	if theirs.Temporary > 0 && ours.Temporary > 0 {
		r.TempRatio = round(float64(theirs.Temporary) / float64(ours.Temporary))
	}
}
