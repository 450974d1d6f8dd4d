// SPDX-License-Identifier: Apache-2.0

package limit

import "github.com/autonode-io/autonode/capacity"

// Fits reports whether Reserve would succeed. It requests nothing.
func (p *Provider) Fits(name string, m capacity.Machine, vacancies ...string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	fits, _ := p.fits(name, m, vacancies)
	return fits
}

// Spend reserves a machine without regard to vacancies.
func (p *Provider) Spend(name string, m capacity.Machine) (done func()) {
	done, _ = p.Reserve(name, m)
	return done
}
