import { readdirSync, readFileSync } from 'node:fs';

/** Microseconds that the threads of a process have had a core. Linux only. */
export interface CpuTime {
  readonly main: number;
  readonly all: number;
}

export function cpuOf(pid: number): CpuTime {
  const times = readdirSync(`/proc/${pid}/task`).map((thread) => {
    const text = readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'latin1');
    return { isMain: thread === `${pid}`, time: Number.parseInt(text) / 1000 };
  });
  return {
    main: times.find(({ isMain }) => isMain)?.time ?? NaN,
    all: times.reduce((sum, { time }) => sum + time, 0),
  };
}
