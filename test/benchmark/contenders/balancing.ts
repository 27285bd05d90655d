import type * as balancer from '../../../dist/esm/extensions/distribution/membership/balancer.js';
import type * as members from '../../../dist/esm/extensions/distribution/membership/members.js';
import type * as nodeInfo from '../../../dist/esm/extensions/distribution/membership/node-info.js';

export type Members = members.Members;
export type NodeInfo = nodeInfo.NodeInfo;

type Balancing = Pick<typeof balancer, 'balancerOf'> &
  Pick<typeof members, 'Members'> &
  Pick<typeof nodeInfo, 'readNodeInfo'>;

/**
 * How calls find their nodes, which the package keeps to itself: taken from where the build puts
 * it.
 */
export async function balancing(): Promise<Balancing> {
  const files = ['balancer', 'members', 'node-info'].map(
    (file) => `../../../../../dist/esm/extensions/distribution/membership/${file}.js`,
  );
  const [first, second, third] = await Promise.all(
    files.map((file) => import(new URL(file, import.meta.url).href)),
  );
  return { ...first, ...second, ...third };
}
