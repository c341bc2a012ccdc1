package echarts

import (
	"strings"
	"unicode"
)

// TextWidth estimates the width of s in pixels in a sans-serif font of the given size. It follows DejaVu Sans, the
// widest of the common fonts.
func TextWidth(s string, size float64) float64 {
	em := 0.0
	for _, r := range s {
		switch {
		case strings.ContainsRune("iljI.,:;'|! ftr()[]-/", r):
			em += 0.38
		case strings.ContainsRune("mwMW@%", r):
			em += 0.95
		case unicode.Is(unicode.Mn, r):
		case r >= 0x2E80:
			em += 1.05
		default:
			em += 0.64
		}
	}
	return em * size
}

// BoldWidth is how much wider bold text is.
const BoldWidth = 1.12
