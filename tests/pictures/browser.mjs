// Renders a page in headless Chromium and takes a screenshot.

import { writeFile } from 'node:fs/promises';
import puppeteer from 'puppeteer-core';
import UPNG from 'upng-js';

const CHROMIUM = process.env.CHROMIUM ?? '/usr/bin/chromium';

// Fills a page with `fill`, and writes its element with the id `picture` to a PNG file.
export async function takePicture(out, width, fill) {
  const browser = await puppeteer.launch({
    executablePath: CHROMIUM,
    args: ['--no-sandbox', '--disable-gpu', '--force-color-profile=srgb', '--hide-scrollbars'],
    defaultViewport: { width, height: 900, deviceScaleFactor: 1 },
  });
  try {
    const page = await browser.newPage();
    const failure = new Promise((_, reject) => {
      page.on('pageerror', (error) => reject(new Error(`the page failed: ${error.message}`)));
      page.on('requestfailed', (request) => reject(new Error(`the page could not load ${request.url()}`)));
    });
    await Promise.race([photograph(page, out, fill), failure]);
  } finally {
    await browser.close();
  }
}

async function photograph(page, out, fill) {
  await fill(page);
  await page.waitForNetworkIdle({ idleTime: 500 });
  const picture = await page.$('#picture');
  const image = UPNG.decode(await picture.screenshot({ type: 'png', omitBackground: true }));
  // A palette of 256 colors makes the file a third as large.
  await writeFile(out, Buffer.from(UPNG.encode(UPNG.toRGBA8(image), image.width, image.height, 256)));
}
