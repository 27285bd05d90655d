import { randomFrom } from '../../chaos/random.js';
import { balancing, type Members } from '../contenders/balancing.js';
import { Fleet } from '../contenders/fleet.js';
import { compare, type Measurement } from '../harness/measurement.js';
import type { Plan } from '../harness/plan.js';
import { interleave } from '../harness/rounds.js';

const nodes = 1000;
const nobody: ReadonlySet<string> = new Set();
const context = { serving: 'm', activeCalls: () => 1 };

/**
 * P10: what it costs to know a thousand nodes and to pick one of them for each of a million calls,
 * and how even that is.
 */
export async function registry(plan: Plan): Promise<Measurement[]> {
  return [await costOfCalls(plan), await errorOfNodes(plan), await costOfBeats(plan)];
}

/** Against one who is taken from a plain array of all nodes, whatever their weights. */
async function costOfCalls(plan: Plan): Promise<Measurement> {
  const { balancerOf } = await balancing();
  const { members } = await newCluster();
  const addresses = members.all.map(({ info }) => info.address);
  const excluded = new Set(addresses.slice(0, 3));
  const random = randomFrom(1);
  const weighted = balancerOf('weighted', random);
  const least = balancerOf('least-loaded', random);
  const calls = callsOf(plan);
  const sides = await interleave(plan.rounds, {
    weighted: async () =>
      costPerCall(calls, () => weighted(members.candidates('m'), nobody, context)?.address),
    array: async () => costPerCall(calls, () => addresses[Math.floor(random() * addresses.length)]),
    '3 excluded': async () =>
      costPerCall(calls, () => weighted(members.candidates('m'), excluded, context)?.address),
    'least loaded': async () =>
      costPerCall(calls, () => least(members.candidates('m'), nobody, context)?.address),
  });

  return compare({
    figure: 'P10',
    title: `picking one of ${nodes} nodes`,
    better: 'lower',
    by: 'ratio',
    sides,
    sideUnit: 'µs',
  });
}

/**
 * How far nodes are from their share of the calls, while after every hundredth of these one node of
 * a hundred changes its weight.
 */
async function errorOfNodes(plan: Plan): Promise<Measurement> {
  const { balancerOf } = await balancing();
  const spells = 100;
  const calls = callsOf(plan) / spells;
  const sides: Record<'weighted' | 'chance', number[]> = { weighted: [], chance: [] };
  for (let round = 1; round <= plan.rounds; round++) {
    const { members, fleet } = await newCluster(round);
    const pick = balancerOf('weighted', randomFrom(round));
    const tallies = new Map(members.all.map(({ info }) => [info.address, new Tally()]));
    for (let spell = 0; spell < spells; spell++) {
      const { list } = members.candidates('m');
      const total = list.reduce((sum, { share }) => sum + share, 0);
      list.forEach(({ address, share }) => tallies.get(address)!.expect(calls, share / total));
      for (let call = 0; call < calls; call++) {
        tallies.get(pick(members.candidates('m'), nobody, context)!.address)!.got++;
      }
      fleet.announce(members, 0.01);
    }
    const all = [...tallies.values()];
    sides.weighted.push(100 * rootMeanSquare(all.map(({ got, due }) => (got - due) / due)));
    sides.chance.push(
      100 * rootMeanSquare(all.map(({ variance, due }) => Math.sqrt(variance) / due)),
    );
  }

  const title = 'calls of a node, off its share';
  return compare({ figure: 'P10', title, aim: { atMost: 1.1 }, by: 'ratio', sides, sideUnit: '%' });
}

/** Against reading the text of their headers as JSON, which nobody can do without. */
async function costOfBeats({ rounds }: Plan): Promise<Measurement> {
  const { readNodeInfo } = await balancing();
  const { members, fleet } = await newCluster();
  const repeats = 20;
  const cost = (changed: number, receive: (header: string) => unknown): number => {
    let time = 0;
    for (let repeat = 0; repeat < repeats; repeat++) {
      const headers = fleet.beats(changed).map((info) => JSON.stringify(info));
      const start = performance.now();
      headers.forEach(receive);
      members.candidates('m');
      time += performance.now() - start;
    }
    return time / repeats;
  };
  const receive = (header: string): void => members.receive(readNodeInfo(JSON.parse(header)), 0);
  const sides = await interleave(rounds, {
    'another load': async () => cost(0, receive),
    'JSON alone': async () => cost(0, (header) => JSON.parse(header)),
    'another weight': async () => cost(1, receive),
  });

  return compare({
    figure: 'P10',
    title: `receiving the beats of ${nodes} nodes`,
    better: 'lower',
    by: 'ratio',
    sides,
    sideUnit: 'ms',
  });
}

/**
 * The calls that a node got, those that are due to it, and how far chance takes the ones from the
 * others.
 */
class Tally {
  got = 0;
  due = 0;
  variance = 0;

  expect(calls: number, part: number): void {
    this.due += calls * part;
    this.variance += calls * part * (1 - part);
  }
}

async function newCluster(seed = 1): Promise<{ members: Members; fleet: Fleet }> {
  const { Members: Table } = await balancing();
  const members = new Table({ suspectAfter: 2000, downAfter: 3000, maxNodes: 1024 });
  const fleet = new Fleet('m', nodes, randomFrom(seed));
  fleet.announce(members);
  return { members, fleet };
}

/** A million, when rounds have the time for that. */
function callsOf({ seconds }: Plan): number {
  return Math.min(1e6, Math.ceil(seconds * 1e4) * 200);
}

/** Microseconds a call. */
function costPerCall(calls: number, pick: () => string | undefined): number {
  let picked = 0;
  const start = performance.now();
  for (let call = 0; call < calls; call++) {
    picked += pick()?.length ?? 0;
  }
  const time = performance.now() - start;
  if (picked === 0) {
    throw new Error('Nobody was picked');
  }
  return (time / calls) * 1000;
}

function rootMeanSquare(values: readonly number[]): number {
  return Math.sqrt(values.reduce((sum, value) => sum + value * value, 0) / values.length);
}
