// Makes docs/pictures/sample.png from the running semantic search: npm run sample 02, and then node scripts/sample-picture.js
import { chromium } from 'playwright-core';

const executablePath = process.env.CHROMIUM_PATH ?? '/usr/bin/chromium';
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
const page = await browser.newPage({ viewport: { width: 1200, height: 600 } });
await page.goto('http://localhost:3000');

// Typing sends a question per character; the button sends two hundred at once.
for (const question of ['I cannot log in', 'where is my parcel', 'travelling with a cat']) {
  await page.getByLabel('Question').fill('');
  await page.getByLabel('Question').pressSequentially(question, { delay: 60 });
  await page.getByRole('button', { name: 'Fire 200 concurrent questions' }).click();
  await page.waitForFunction(() => !document.querySelector('#fire').disabled);
}
await page.getByText('Can I bring my dog on the plane?').waitFor();
await page.waitForTimeout(300);
await page.screenshot({ path: 'docs/pictures/sample.png' });
await browser.close();
