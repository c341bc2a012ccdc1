package cost

import "fmt"

// Seconds is a duration in seconds. (A time.Duration ends at 292 years, too short for GPT-3 on one GPU.)
type Seconds float64

const (
	day  Seconds = 24 * 60 * 60
	year Seconds = 365.25 * day
)

// String returns the time with three digits in a suitable unit, from ns to years.
func (s Seconds) String() string {
	unit, name := year, " years"
	for _, u := range []struct {
		below, unit Seconds
		name        string
	}{{1e-6, 1e-9, " ns"}, {1e-3, 1e-6, " µs"}, {1, 1e-3, " ms"}, {120, 1, " s"}, {7200, 60, " min"},
		{2 * day, 3600, " h"}, {2 * year, day, " days"}} {
		if s < u.below && s > -u.below {
			unit, name = u.unit, u.name
			break
		}
	}
	return fmt.Sprintf("%.3g", float64(s/unit)) + name
}

// TrainingTime returns flops / (devices · peak · utilization): the time of a training run on devices that attain this
// fraction of their peak (FLOPs a second). With 8ND for flops it is equation 4 of Narayanan et al. 2021.
//
// It returns an error unless all arguments are positive and finite and the utilization is at most 1.
func TrainingTime(flops float64, devices int, peak, utilization float64) (Seconds, error) {
	if err := positive(quantity{"operations", flops}, quantity{"devices", float64(devices)}, quantity{"peak", peak},
		quantity{"utilization", utilization}); err != nil {
		return 0, err
	}
	if utilization > 1 {
		return 0, fmt.Errorf("cost: utilization is %v: it is a fraction of the peak, so give at most 1", utilization)
	}
	return Seconds(flops / (float64(devices) * peak * utilization)), nil
}

// Utilization returns flops / (took · devices · peak): the fraction of the devices' peak (FLOPs a second) that a run
// attained. It is the MFU for the FLOPs of [Work.Model] or [Model.TokenFLOPs], and the HFU for those of [Work.Hardware]
// (Chowdhery et al. 2022, appendix B). More than 1 means that an argument is wrong. It returns an error unless all
// arguments are positive and finite.
func Utilization(flops float64, took Seconds, devices int, peak float64) (float64, error) {
	if err := positive(quantity{"operations", flops}, quantity{"time", float64(took)},
		quantity{"devices", float64(devices)}, quantity{"peak", peak}); err != nil {
		return 0, err
	}
	return flops / (float64(took) * float64(devices) * peak), nil
}
