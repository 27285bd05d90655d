import { Injectable } from '@nestjs/common';
import { LoginGuard } from 'nestjs-serving';

/** Admits browsers that sign in as `operator` with the password of `BOARD_PASSWORD`. */
@Injectable()
export class BoardGuard extends LoginGuard {
  constructor() {
    super({ user: 'operator', password: process.env.BOARD_PASSWORD });
  }
}
