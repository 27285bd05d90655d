import { expect } from '@jest/globals';
import type { Page } from 'playwright-core';

/** Elements that reach beyond the window, or whose content reaches beyond them. */
const overflowing = `[...document.querySelectorAll('body *')]
  .filter((element) => {
    const { right, width } = element.getBoundingClientRect();
    const { overflowX, display } = getComputedStyle(element);
    const spills = overflowX === 'visible' && display !== 'inline' && element.scrollWidth > element.clientWidth + 1;
    return width > 0 && (right > innerWidth + 1 || spills);
  })
  .map((element) => element.outerHTML.slice(0, 120))`;

/** Nothing overflows on a phone, a tablet and a desktop, in light and in dark colours. */
export async function expectToFit(page: Page): Promise<void> {
  const viewport = page.viewportSize()!;
  for (const width of [390, 768, 1440]) {
    await page.setViewportSize({ ...viewport, width });
    expect({ width, overflowing: await page.evaluate(overflowing) }).toEqual({
      width,
      overflowing: [],
    });
  }
  await page.setViewportSize(viewport);
  const background = () => page.evaluate('getComputedStyle(document.body).backgroundColor');
  await page.emulateMedia({ colorScheme: 'dark' });
  await expect(background()).resolves.toBe('rgb(21, 23, 28)');
  await page.emulateMedia({ colorScheme: 'light' });
  await expect(background()).resolves.toBe('rgb(246, 244, 239)');
}
